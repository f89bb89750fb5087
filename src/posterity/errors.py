"""The package's exceptions: every message names what was expected and what came."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any


class PosterityError(Exception):
    """Base of every error that Posterity raises on purpose."""


class InvalidInput(PosterityError, ValueError):
    """An argument, a batch or a parameter that cannot be right."""


class Undefined(PosterityError, ArithmeticError):
    """A quantity that does not exist for this object (the entropy of an ensemble, say)."""


class RefusedFile(PosterityError, OSError):
    """A file that is damaged, foreign, newer than this package or made for another model."""


class MissingExtra(PosterityError, ImportError):
    """An optional dependency that this call needs and that is not installed."""


def renamed(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that have changed, old to new: the old ones work, with a warning."""

    def lookup(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(f"{package}.{name} is now {package}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[package], names[name])

    return lookup


def expected(what: str, wanted: str, got: Any) -> InvalidInput:
    """Build an error in the form ``raise expected("lr", "a positive number", lr)``.

    Examples:
        >>> str(expected("lr", "a positive number", -1.0))
        'lr: expected a positive number, got -1.0'
    """
    return InvalidInput(f"{what}: expected {wanted}, got {_shown(got)}")


def _shown(got: Any) -> str:
    try:
        return "a larger one" if huge(got) else repr(got)
    except ValueError:  # Python does not print whole numbers of thousands of digits, in a tuple either
        return "a number too long to print"


def require(condition: bool, what: str, wanted: str, got: Any) -> None:
    """Raise ``expected(what, wanted, got)`` unless the condition holds."""
    if not condition:
        raise expected(what, wanted, got)


def require_positive(what: str, value: float) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    try:
        fine = 0 < value < float("inf") and float(value) > 0
    except (TypeError, OverflowError):  # 10**400 is below infinity, and no float
        fine = False
    require(bool(fine), what, "a positive finite number", value)


def require_finite(what: str, value: Any, least: float = -math.inf) -> None:
    """Raise unless ``value`` is a finite number that is large enough."""
    fine = isinstance(value, Real) and not huge(value) and math.isfinite(value) and float(value) >= least
    wanted = "a finite number" if least == -math.inf else f"a finite number >= {least:g}"
    require(fine, what, wanted, value)


def huge(value: Any) -> bool:
    """A whole number that no float holds; Python refuses to print it, too, beyond some length."""
    return isinstance(value, int) and abs(value) >= 2**1024


def require_whole(what: str, value: Any, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number, of Python's or numpy's, from ``least`` up to 2^63 − 1 (True is none).

    Examples:
        >>> require_whole("samples", 2.5)
        Traceback (most recent call last):
        posterity.errors.InvalidInput: samples: expected a whole number >= 1, got 2.5
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(whole, what, f"a whole number >= {least}", value)
    require(int(value) < 2**63, what, "a whole number below 2^63", value)


def require_seed(value: Any) -> None:
    """Raise unless ``value`` is a whole number, of Python's or numpy's, in the 64 bits that torch takes."""
    require(isinstance(value, Integral), "seed", "a whole number", value)
    require(-(2**63) <= int(value) < 2**64, "seed", "a whole number in 64 bits", value)
