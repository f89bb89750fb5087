"""Optimizers that leave a posterior behind: drop-in `torch.optim.Optimizer` classes for networks."""

from posterity.optim._variational import VariationalOptimizer
from posterity.optim.ivon import IVON

__all__ = ["IVON", "VariationalOptimizer"]
