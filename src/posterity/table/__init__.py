"""Table 1 as a registry: every algorithm compared with an independent implementation, run live."""

from posterity.table._row import Result, Row
from posterity.table.markdown import markdown
from posterity.table.registry import ROWS, row

__all__ = ["ROWS", "Result", "Row", "markdown", "row"]
