"""A row of Table 1: what it is, what it is held against, and how far off it may be."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posterity.errors import MissingExtra


@dataclass(frozen=True)
class Row:
    """One line of Table 1.

    Args:
        name: What `posterity table NAME` calls it.
        algorithm: The function of `posterity.algorithms`, or the optimizer; its docstring is the derivation.
        posterior: The family of q.
        approximations: What is approximated, in the words of the rule's options.
        reference: The independent implementation, in words.
        tolerance: The largest deviation allowed, in the row's unit.
        measure: The comparison, run live.
        package: What has to be installed besides the package itself.
        unit: What the deviation is counted in.
    """

    name: str
    algorithm: Callable[..., Any]
    posterior: str
    approximations: str
    reference: str
    tolerance: float
    measure: Callable[[], float]
    package: str = ""
    unit: str = "absolute"

    @property
    def title(self) -> str:
        """The name of the algorithm, as the heading above its derivation."""
        name = self.algorithm.__name__
        return f"optim.{name}" if inspect.isclass(self.algorithm) else name

    @property
    def derivation(self) -> str:
        """The docstring of the algorithm, without arguments and examples."""
        text = inspect.getdoc(self.algorithm) or ""
        return text.split("\nArgs:")[0].split("\nExamples:")[0].strip()

    @property
    def missing(self) -> bool:
        """Whether the package of the reference is not installed."""
        return bool(self.package) and importlib.util.find_spec(self.package) is None

    def run(self) -> Result:
        """Run the row beside its reference."""
        try:
            return Result(self, float(self.measure()))
        except ImportError as error:
            raise MissingExtra(f"row {self.name!r}: {error}; pip install 'posterity[table]'") from error


@dataclass(frozen=True)
class Result:
    """How far a row was from its reference."""

    row: Row
    deviation: float

    @property
    def holds(self) -> bool:
        """Whether the deviation is within the tolerance (NaN never is)."""
        return self.deviation <= self.row.tolerance
