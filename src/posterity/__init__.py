"""Posterity: machines that keep learning. The public names, imported when first used."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "PosterityError": "posterity.errors",
}
_PACKAGES = ("errors", "families", "likelihoods", "noise")

__all__ = ["__version__", *_PACKAGES, *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"posterity.{name}")
    raise AttributeError(f"module 'posterity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
