"""C compiled for this machine, once, and the noise of large tensors drawn by it."""

from posterity.native._library import NoLibrary, find_compiler, load
from posterity.native._normals import HEADERS, definitions, draw

__all__ = ["HEADERS", "NoLibrary", "definitions", "draw", "find_compiler", "load"]
