"""The old name of `posterity.distributed`."""

from __future__ import annotations

import warnings
from typing import Any

from posterity import distributed


def __getattr__(name: str) -> Any:
    found = getattr(distributed, name)
    warnings.warn(f"posterity.processes.{name} is now posterity.distributed.{name}", DeprecationWarning, stacklevel=2)
    return found
