"""The engine under every variational optimizer. Read `_lifecycle`, then `_backend`, then `_optimizer`."""

from posterity.optim.engine._attach import Attachment
from posterity.optim.engine._lifecycle import Lifecycle, Phase
from posterity.optim.engine._optimizer import VariationalOptimizer
from posterity.optim.engine._parameters import Group, Parameters
from posterity.optim.engine._priors import trained as trained_names
from posterity.optim.engine._statistics import norm

__all__ = ["Attachment", "Group", "Lifecycle", "Parameters", "Phase", "VariationalOptimizer", "norm", "trained_names"]
