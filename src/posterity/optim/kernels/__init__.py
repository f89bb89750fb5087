"""The arithmetic of samples and updates, in plain tensor operations or by kernels in one pass over memory."""

from posterity.optim.kernels._choice import adam_kernels_for, kernels_for, usable
from posterity.optim.kernels._contract import AdamKernels, Course, IVONKernels, Kernels, largest
from posterity.optim.kernels._eager import average, perturb, statistics, update
from posterity.optim.kernels._pieces import Numbers, Piece, Views, put_back, put_forth
from posterity.optim.kernels._pointer_table import Coefficients, Entry, Marks, laid_out, like, require_dense

__all__ = [
    "AdamKernels",
    "Coefficients",
    "Course",
    "Entry",
    "IVONKernels",
    "Kernels",
    "Marks",
    "Numbers",
    "Piece",
    "Views",
    "adam_kernels_for",
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
