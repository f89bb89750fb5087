"""MixtureIVON: several networks trained jointly as the components of one mixture of Gaussians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import InvalidInput, expected, require
from posterity.likelihoods import Likelihood
from posterity.optim.ivon import IVON
from posterity.posterior import Diagonal, Mixture, Posterior
from posterity.trees import check_same_shapes, trainable


class MixtureIVON(IVON):
    """One mixture q = (1/K) Σ_c q_c of diagonal Gaussians, its components networks of one architecture.

    The evidence lower bound of a mixture is that of its components and one term more, which pushes apart components
    that overlap. With the responsibility r_c(θ) = q_c(θ) / Σ_k q_k(θ),

        E_q[ℓ + log q] = (1/K) Σ_c E_{q_c}[ ℓ + log q_c − log r_c ] − log K

    so that each component is trained by IVON's equations on its mean loss − log r_c(θ_c)/λ. `repulsion` is the sum of
    these terms: add it to the sum of the members' losses. Where components do not overlap it vanishes, and this is a
    plain ensemble of IVONs (`posterity.fit(..., method="ensemble", base="ivon")`).

    Args:
        models: Networks of one architecture, each with its own initial weights.
        lr: Learning rate.
        ess: Effective sample size λ.
        **options: As for IVON.

    Examples:
        >>> models = [nn.Linear(2, 1) for _ in range(3)]
        >>> optimizer = MixtureIVON(models, lr=0.1, ess=100)
        >>> x = torch.randn(8, 2)
        >>> with optimizer.sampled_params(train=True):
        ...     loss = sum((model(x) ** 2).mean() for model in models) + optimizer.repulsion()
        ...     loss.backward()
        >>> optimizer.step()

    References:
        Lin, Khan and Schmidt, "Fast and simple natural-gradient variational inference with mixture of
        exponential-family approximations", 2019.
    """

    given = ()  # one prior for all components

    def __init__(self, models: Sequence[nn.Module], lr: float | Tensor, ess: float, **options: Any) -> None:
        networks = isinstance(models, (Sequence, nn.ModuleList)) and all(isinstance(m, nn.Module) for m in models)
        require(networks and len(models) > 0, "models", "a list of at least one network", models)
        if "prior" in options:
            raise expected("options", "weight_decay for the prior of a mixture", "prior")
        trees = [trainable(model) for model in models]
        for tree in trees[1:]:
            check_same_shapes(tree, trees[0], "models")
        own = len({p for tree in trees for p in tree.values()}) == sum(map(len, trees))
        require(own, "models", "networks with weights of their own", "some that share theirs")
        self._models = list(models)
        params = [(f"{c}.{name}", p) for c, tree in enumerate(trees) for name, p in tree.items()]
        super().__init__(params, lr, ess, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_models": self._models}

    def repulsion(self) -> Tensor:
        """−Σ_c log r_c(θ_c)/λ at the samples in place, with its gradient in them."""
        if not self._samples.context_open:
            raise InvalidInput("repulsion: expected samples in place, got none; use sampled_params(train=True)")
        groups = {p: group for group, p in self._parameters}
        logs: Tensor | float = 0.0  # log q_c(θ_k), one row for each sample k
        for same in zip(*(trainable(model).values() for model in self._models), strict=True):
            theta, mean = torch.stack(same), torch.stack([self._samples.means[p] for p in same])
            precision = torch.stack([self.precision_of(p, groups[p]) for p in same])
            terms = (precision / (2 * math.pi)).log() - precision * (theta.unsqueeze(1) - mean) ** 2
            logs = logs + 0.5 * terms.double().flatten(2).sum(-1)
        assert isinstance(logs, Tensor)
        return (torch.logsumexp(logs, 1) - logs.diagonal()).sum() / self.param_groups[0]["ess"]

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Return the mixture, as a posterior of a model (any member will do; they share its buffers)."""
        self._put_mean()
        components = [self.structure(trainable(member)) for member in self._models]
        group = self.param_groups[0]
        prior = Diagonal.isotropic(components[0].mean, group["ess"] * group["weight_decay"])
        structure = Mixture(torch.ones(len(components)), components)
        return Posterior.of(model, structure, prior=prior, n=n, ess=group["ess"], likelihood=likelihood)
