"""The arithmetic of samples and updates, in plain tensor operations or compiled into one pass over memory."""

from posterity.optim.kernels import _compiled as compiled
from posterity.optim.kernels import _eager as eager
from posterity.optim.kernels._eager import statistics
from posterity.optim.kernels._pieces import Numbers, Piece, Views, swap

__all__ = ["Numbers", "Piece", "Views", "compiled", "eager", "statistics", "swap"]
