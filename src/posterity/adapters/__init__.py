"""Low-rank adapters: a posterior over a few weights beside a frozen network, in plain torch and in PEFT's files."""

from posterity.adapters.curvature import adapter_curvature
from posterity.adapters.layers import LoRALinear, adapted_modules, insert_lora
from posterity.adapters.store import load_adapter, save_adapter

__all__ = ["LoRALinear", "adapted_modules", "adapter_curvature", "insert_lora", "load_adapter", "save_adapter"]
