"""The arithmetic of one parameter's sample and update, block by block or compiled into one pass over memory."""

from posterity.optim.kernels._compiled import perturb_compiled, update_compiled
from posterity.optim.kernels._eager import Numbers, perturb, statistics, update

__all__ = ["Numbers", "perturb", "perturb_compiled", "statistics", "update", "update_compiled"]
