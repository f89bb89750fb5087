"""The memory map in the browser: a local server, or one file that needs none (extra `posterity[app]`)."""

from posterity.app._serve import Served, serve
from posterity.app._write_html import write_html
from posterity.app.from_map import from_map
from posterity.app.source import Estimate, Preview, Source

__all__ = ["Estimate", "Preview", "Served", "Source", "from_map", "serve", "write_html"]
