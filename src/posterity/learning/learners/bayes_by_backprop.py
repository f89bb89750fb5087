"""Bayes by backprop: a Gaussian on every weight, trained through the reparameterised evidence lower bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Adam

from posterity.batches import Batches
from posterity.errors import require, require_positive
from posterity.inputs import Inputs, call
from posterity.learning.learners._base import Learner, Plan, Prior, as_prior
from posterity.likelihoods import Likelihood
from posterity.noise import Key, normal
from posterity.posterior import Diagonal, Posterior
from posterity.trees import Tree, check_same_shapes, trainable


class BayesByBackprop(Learner):
    """A Gaussian q = N(m, σ²) on each weight, σ = log(1 + e^ρ), by Adam on (m, ρ).

        −ELBO/N  =  E_ε[ ℓ(m + σε) ] + KL(q ‖ prior)/N,   ℓ the mean loss of a batch

    The module is called with the drawn weights in place of its own (`torch.func.functional_call`), so any
    architecture will do; its own parameters are the means m.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of N(0, 1/prior), or a Diagonal, or an earlier Posterior.
        sigma_init: The σ that every weight starts with; a tensor for each parameter to start from an earlier posterior.
        draws: Draws of the weights for each batch.
        ess: Effective sample size, N unless given: KL is divided by it.

    References:
        Blundell et al., "Weight uncertainty in neural networks", 2015.
    """

    default_lr = 5e-3

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        prior: Prior = 1.0,
        sigma_init: float | Tree = 0.02,
        draws: int = 1,
        ess: float | None = None,
    ) -> None:
        super().__init__(model, plan)
        require(draws >= 1, "draws", "at least one", draws)
        self.prior = as_prior(model, prior)
        self.draws = draws
        self.ess = float(plan.n if ess is None else ess)
        self.means = trainable(model)
        self.rhos = {name: rho.requires_grad_() for name, rho in self._initial_rhos(sigma_init).items()}
        self.optimizer = Adam([*self.means.values(), *self.rhos.values()], lr=plan.lr)
        self.drawn: Tree = {}

    def _initial_rhos(self, sigma: float | Tree) -> Tree:
        """log(e^σ − 1), the inverse of σ = log(1 + e^ρ)."""
        if not isinstance(sigma, dict):
            require_positive("sigma_init", sigma)
            return {name: torch.full_like(m, math.log(math.expm1(sigma))) for name, m in self.means.items()}
        check_same_shapes(sigma, self.means, "sigma_init")
        # For large σ both sides are equal to rounding, and e^σ is not a number.
        return {name: torch.where(s < 20, torch.log(torch.expm1(s.clamp_max(20))), s) for name, s in sigma.items()}

    @contextmanager
    def draw(self, step: int, sample: int) -> Iterator[None]:
        for i, (name, m) in enumerate(self.means.items()):
            noise = normal(Key(self.plan.seed, step, sample, i), m.numel(), device=m.device, dtype=m.dtype)
            self.drawn[name] = m + F.softplus(self.rhos[name]) * noise.view_as(m)
        yield
        self.drawn = {}

    def forward(self, inputs: Inputs) -> Tensor:
        return call(lambda *args, **kwargs: functional_call(self.model, self.drawn, args, kwargs), inputs)

    def penalty(self) -> Tensor:
        """KL(q ‖ prior)/N = Σ ½[ s₀(σ² + (m − m₀)²) − 1 − log(s₀σ²) ] / N."""
        terms = []
        for name, m in self.means.items():
            s0, m0 = self.prior.precision[name], self.prior.mean[name]
            variance = F.softplus(self.rhos[name]).square()
            terms.append((s0 * (variance + (m - m0).square()) - 1 - (s0 * variance).log()).sum())
        return 0.5 * torch.stack(terms).sum() / self.ess

    @torch.no_grad()
    def sigma(self) -> float:
        return float(torch.cat([F.softplus(r).reshape(-1) for r in self.rhos.values()]).median())

    def state(self) -> Tree:
        return dict(self.rhos)

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        for name, rho in state.items():
            self.rhos[name].copy_(rho)

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        precision = {name: F.softplus(rho.detach()).square().reciprocal() for name, rho in self.rhos.items()}
        return self.hand_over(Diagonal({n: m.detach() for n, m in self.means.items()}, precision), likelihood, self.ess)
