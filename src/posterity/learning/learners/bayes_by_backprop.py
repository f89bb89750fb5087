"""Bayes by backprop: a Gaussian on every weight, trained through the reparameterised evidence lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Adam

from posterity.batches import Batches
from posterity.errors import require, require_positive, require_whole
from posterity.inputs import Inputs, call
from posterity.learning.learners._base import Learner, Prior, TrainingPlan, as_prior
from posterity.learning.learners._local_noise import local_noise, uncertain_layers
from posterity.likelihoods import Likelihood
from posterity.noise import Key, normals
from posterity.posterior import Diagonal, Posterior
from posterity.trees import Tree, check_same_shapes, from_vector, to_vector, trainable


class BayesByBackpropLearner(Learner):
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
        local: Whether linear layers draw outputs in place of weights, which has the same mean and far less noise. A
            layer that a model uses twice then draws twice.

    References:
        Blundell et al., "Weight uncertainty in neural networks", 2015.
    """

    default_lr = 5e-3
    follows_adam = True

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: Prior = 1.0,
        sigma_init: float | Tree = 0.02,
        draws: int = 1,
        ess: float | None = None,
        local: bool = False,
    ) -> None:
        super().__init__(model, plan)
        require_whole("draws", draws)
        self.prior = as_prior(model, prior)
        self.draws = draws
        self.ess = float(plan.n if ess is None else ess)
        require_positive("ess", self.ess)
        self.means = trainable(model)
        like = to_vector(self.means).detach()
        self.prior_mean = to_vector(self.prior.mean).to(like)
        self.prior_precision = to_vector(self.prior.precision_diagonal()).to(like)
        least = self.prior_precision.min().item()
        require(least > 0, "prior", "a precision > 0 on every weight, without which the KL is infinite", least)
        self.rho = self._initial_rho(sigma_init).requires_grad_()
        self.optimizer = Adam([*self.means.values(), self.rho], lr=plan.lr)
        self.layers = uncertain_layers(model, self.means) if local else {}
        inside = {name for names in self.layers.values() for name in names}
        self.outside = {name: i for i, name in enumerate(self.means) if name not in inside}
        self.drawn: Tree = {}

    def _initial_rho(self, sigma: float | Tree) -> Tensor:
        """log(e^σ − 1), the inverse of σ = log(1 + e^ρ)."""
        if not isinstance(sigma, dict):
            require_positive("sigma_init", sigma)
            sigma = {name: torch.full_like(m, sigma) for name, m in self.means.items()}
        check_same_shapes(sigma, self.means, "sigma_init")
        s = to_vector({name: sigma[name] for name in self.means}).detach().to(self.prior_mean)
        # For large σ both sides are equal to rounding, and e^σ is not a number.
        return torch.where(s < 20, torch.log(torch.expm1(s.clamp_max(20))), s)

    @contextmanager
    def draw(self, step: int, sample: int) -> Iterator[None]:
        widths = from_vector(F.softplus(self.rho), self.means)
        # Means that are used as they are go in as views: whoever watches these sees no gradient of the prior.
        self.drawn = {name: m.view_as(m) for name, m in self.means.items() if name not in self.outside}
        if self.outside:
            means = {name: self.means[name] for name in self.outside}
            keys = [Key(self.plan.seed, step, sample, i) for i in self.outside.values()]
            counts = [m.numel() for m in means.values()]
            noise = normals(keys, counts, [0] * len(keys), device=self.rho.device, dtype=self.rho.dtype)
            self.drawn |= {name: means[name] + widths[name] * e for name, e in from_vector(noise, means).items()}
        with local_noise({layer: (widths[w], widths.get(b)) for layer, (w, b) in self.layers.items()}):
            yield
        self.drawn = {}

    def forward(self, inputs: Inputs) -> Tensor:
        return call(lambda *args, **kwargs: functional_call(self.model, self.drawn, args, kwargs), inputs)

    def penalty(self) -> Tensor:
        """KL(q ‖ prior)/N = Σ ½[ s₀(σ² + (m − m₀)²) − 1 − log(s₀σ²) ] / N."""
        variance, away = F.softplus(self.rho).square(), to_vector(self.means) - self.prior_mean
        scaled = self.prior_precision * variance
        return 0.5 * (scaled + self.prior_precision * away.square() - 1 - scaled.log()).sum() / self.ess

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        return {"sigma": float(F.softplus(self.rho).median())}

    def state(self) -> Tree:
        return from_vector(self.rho, self.means)

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        self.rho.copy_(to_vector({name: state[name] for name in self.means}))

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        precision = from_vector(F.softplus(self.rho.detach()).square().reciprocal(), self.means)
        return self.hand_over(Diagonal({n: m.detach() for n, m in self.means.items()}, precision), likelihood, self.ess)
