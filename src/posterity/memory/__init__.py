"""The memory of a model: which examples it is made of, and what would change without them."""

from posterity.memory._dual import Dual, dual
from posterity.memory._memory_map import MemoryMap, memory_map
from posterity.memory.leave_one_out import LeaveOneOut, leave_one_out
from posterity.memory.reliability import Reliability
from posterity.memory.tracker import MemoryTracker
from posterity.memory.what_if import Outcome, WhatIf

__all__ = [
    "Dual",
    "LeaveOneOut",
    "MemoryMap",
    "MemoryTracker",
    "Outcome",
    "Reliability",
    "WhatIf",
    "dual",
    "leave_one_out",
    "memory_map",
]
