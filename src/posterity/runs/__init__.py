"""The run folder, and what the command line does with it."""

from posterity.runs._folder import RunFolder
from posterity.runs.preprocessing import Examples, Preprocessing

__all__ = ["Examples", "Preprocessing", "RunFolder"]
