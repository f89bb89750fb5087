"""Merging: several fine-tuned models into one, weighted by what each is sure of, and the removal of a task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from posterity.errors import renamed
from posterity.merging._method import Chunk, Method
from posterity.merging._sweep import Sweep, sweep, trade_offs
from posterity.merging.dare import Dare
from posterity.merging.fisher import FisherAverage
from posterity.merging.gradient_matching import GradientMatching
from posterity.merging.job import Job, MergeSource
from posterity.merging.linear import Linear
from posterity.merging.lora import merge_adapters
from posterity.merging.methods import METHODS, merge_state_dicts
from posterity.merging.regmean import RegMean
from posterity.merging.slerp import Slerp
from posterity.merging.stream import merge_checkpoints
from posterity.merging.task_arithmetic import TaskArithmetic
from posterity.merging.ties import Ties

if TYPE_CHECKING:
    from posterity.merging._merge import merge
    from posterity.merging.curvatures import write_curvature
    from posterity.merging.gram import gram_matrices

__all__ = [
    "METHODS",
    "Chunk",
    "Dare",
    "FisherAverage",
    "GradientMatching",
    "Job",
    "Linear",
    "MergeSource",
    "Method",
    "RegMean",
    "Slerp",
    "Sweep",
    "TaskArithmetic",
    "Ties",
    "gram_matrices",
    "merge",
    "merge_adapters",
    "merge_checkpoints",
    "merge_state_dicts",
    "sweep",
    "trade_offs",
    "write_curvature",
]

_renamed = renamed(__name__, {"Source": "MergeSource", "Stretch": "Chunk"})
_WHERE = {"gram_matrices": "gram", "merge": "_merge", "write_curvature": "curvatures"}


def __getattr__(name: str) -> Any:
    """What needs posteriors or their curvature is imported when it is asked for: merging checkpoints needs neither."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"posterity.merging.{_WHERE[name]}"), name)
    return _renamed(name)
