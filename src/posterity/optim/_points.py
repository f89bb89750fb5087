"""What optimizers of a single point share: no spread, and a posterior that is an ensemble of one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from posterity.errors import Undefined
from posterity.likelihoods import Likelihood
from posterity.optim._diagnostics import Diagnostics
from posterity.optim.engine import VariationalOptimizer, trained_names
from posterity.optim.kernels import Numbers
from posterity.posterior import Diagonal, Ensemble, Posterior
from posterity.trees import state_dtype


class Point(VariationalOptimizer):
    """An optimizer of one point, which is its own sample."""

    widths = ()
    given = ()  # no prior but weight decay

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        return math.inf

    def _put_sample(self, train: bool) -> None:
        """Do nothing: the point stays in place."""

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Return the point, with the prior that weight decay implies."""
        names = trained_names(self._parameters, model)
        decay = {p: group.get("weight_decay", 0.0) for group, p in self._parameters}
        zeros = {name: torch.zeros_like(p, dtype=state_dtype(p.dtype)) for name, p in names.items()}
        prior = Diagonal(zeros, {name: zeros[name].new_tensor(n * decay[p]) for name, p in names.items()})
        return Posterior.of(model, Ensemble([dict(names)]), prior=prior, n=n, ess=n, likelihood=likelihood)

    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """Not defined: a point has no widths."""
        raise Undefined(f"diagnostics: not defined for {type(self).__name__}, whose posterior is a point")
