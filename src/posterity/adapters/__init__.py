"""Low-rank adapters: a posterior over a few weights beside a frozen network, in plain torch and in PEFT's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posterity.adapters.layers import LoRALinear, adapted_modules, insert_lora
from posterity.adapters.store import load_adapter, save_adapter

if TYPE_CHECKING:
    from posterity.adapters.curvature import adapter_curvature

__all__ = ["LoRALinear", "adapted_modules", "adapter_curvature", "insert_lora", "load_adapter", "save_adapter"]


def __getattr__(name: str) -> Any:
    """Curvature is imported when it is asked for: files of adapters are read and merged without it."""
    if name == "adapter_curvature":
        from posterity.adapters.curvature import adapter_curvature

        return adapter_curvature
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
