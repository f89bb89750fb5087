"""The arithmetic of samples and updates, in plain tensor operations or by kernels in one pass over memory."""

from posterity.optim.kernels._choice import kernels_for, usable
from posterity.optim.kernels._contract import Kernels, largest
from posterity.optim.kernels._eager import average, perturb, statistics, update
from posterity.optim.kernels._pieces import Numbers, Piece, Views, put_back, put_forth
from posterity.optim.kernels._pointer_table import Coefficients, Entry, laid_out, like, require_dense

__all__ = [
    "Coefficients",
    "Entry",
    "Kernels",
    "Numbers",
    "Piece",
    "Views",
    "average",
    "kernels_for",
    "laid_out",
    "largest",
    "like",
    "perturb",
    "put_back",
    "put_forth",
    "require_dense",
    "statistics",
    "update",
    "usable",
]
