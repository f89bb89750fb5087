"""The memory map and the rule in the browser: local servers, or files that need none (extra `posterity[app]`)."""

from posterity.app._serve import Served, serve
from posterity.app._write_html import write_html
from posterity.app.from_map import from_map
from posterity.app.rule import show_rule
from posterity.app.source import Estimate, Preview, Source

__all__ = ["Estimate", "Preview", "Served", "Source", "from_map", "serve", "show_rule", "write_html"]
