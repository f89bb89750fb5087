"""Optimizers that leave a posterior behind: drop-in `torch.optim.Optimizer` classes for networks."""

from posterity.optim._diagnostics import Diagnostics
from posterity.optim._ivon_opt import load_ivon_opt
from posterity.optim._suggest import Suggestion, suggest
from posterity.optim._variational import VariationalOptimizer
from posterity.optim.ivon import IVON

__all__ = ["IVON", "Diagnostics", "Suggestion", "VariationalOptimizer", "load_ivon_opt", "suggest"]
