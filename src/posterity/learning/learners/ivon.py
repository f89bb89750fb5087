"""The learner of IVON: a diagonal Gaussian by natural-gradient descent."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Literal

from torch import nn
from torch.amp import GradScaler

from posterity.batches import Batches
from posterity.errors import require_whole
from posterity.learning.learners._base import Learner, Prior, TrainingPlan, as_prior
from posterity.likelihoods import Likelihood
from posterity.optim import IVON
from posterity.optim.ivon import usual_start
from posterity.posterior import Posterior
from posterity.trees import trainable


class IVONLearner(Learner):
    """IVON, `posterity.optim.IVON` in the loop.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of N(0, 1/prior), or a Diagonal, or an earlier Posterior.
        ess: Effective sample size, N unless given; larger is colder. "auto" is N, or more where the noise would cost
            more than 0.03 nats per example.
        hess_init: Initial value of the Hessian estimate; by default max(0.1, 1000/N), which starts the weights with
            σ ≤ 0.03. A wider start drowns the few examples of a small data set in noise that the Hessian outlives.
            "auto" unlearns its start: take it where widths must be right.
        betas: Decays of the momentum and of the Hessian estimate; by default 0.9 and 1 − 1/steps, so that two thirds of
            the Hessian are learnt. Faster averages follow the noise in ĥ; slower ones leave the width of the posterior
            to `hess_init`.
        beta1: The first of `betas` alone.
        beta2: The second of `betas` alone.
        clip_radius: Bound on every component of a step's direction.
        draws: Draws of the weights for each batch.
    """

    default_lr = 0.2
    default_clip = 10.0  # a rare large gradient, met where h is small, would throw the mean far off

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: Prior = 1.0,
        ess: float | Literal["auto"] | None = None,
        hess_init: float | Literal["auto"] | None = None,
        betas: tuple[float, float | Literal["auto"]] | None = None,
        beta1: float | None = None,
        beta2: float | Literal["auto"] | None = None,
        clip_radius: float = math.inf,
        draws: int = 1,
    ) -> None:
        super().__init__(model, plan)
        require_whole("draws", draws)
        self.draws = draws
        self.prior = as_prior(model, prior)
        start = usual_start(plan.n, plan.steps)
        first, second = start["betas"] if betas is None else betas
        self.optimizer: IVON = IVON(
            trainable(model).items(),
            lr=plan.lr,
            ess=plan.n if ess is None else ess,
            hess_init=start["hess_init"] if hess_init is None else hess_init,
            betas=(first if beta1 is None else beta1, second if beta2 is None else beta2),
            n=plan.n,
            clip_radius=clip_radius,
            prior=self.prior,
            seed=plan.seed,
            total_steps=plan.steps,
        )

    def scaled_by(self, scaler: GradScaler) -> None:
        self.optimizer.scaler = scaler

    def draw(self, step: int, sample: int) -> AbstractContextManager[object]:
        return self.optimizer.sampled_params(train=True)

    def figures(self) -> dict[str, float]:
        return {"sigma": self.optimizer.median_sigma()}

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        found = self.optimizer.posterior(self.model, likelihood=likelihood, n=self.plan.n)
        self.prior = found.prior
        return self.hand_over(found.structure, likelihood, found.ess)
