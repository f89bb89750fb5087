"""The arithmetic of samples and updates, in plain tensor operations or compiled into one pass over memory."""

from posterity.optim.kernels import _compiled as compiled
from posterity.optim.kernels import _eager as eager
from posterity.optim.kernels._addresses import Entry, laid_out, require_dense
from posterity.optim.kernels._choice import kernels_for, usable
from posterity.optim.kernels._eager import statistics
from posterity.optim.kernels._fused import Launcher
from posterity.optim.kernels._native import NativeLauncher
from posterity.optim.kernels._pieces import Numbers, Piece, Views, swap

__all__ = [
    "Entry",
    "Launcher",
    "NativeLauncher",
    "Numbers",
    "Piece",
    "Views",
    "compiled",
    "eager",
    "kernels_for",
    "laid_out",
    "require_dense",
    "statistics",
    "swap",
    "usable",
]
