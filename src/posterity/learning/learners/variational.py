"""The learner of AdamW with a posterior beside it: nothing to tune."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import AdamW

from posterity.batches import Batches
from posterity.errors import require_whole
from posterity.learning.learners._base import Learner, Prior, TrainingPlan, as_prior
from posterity.likelihoods import Likelihood
from posterity.optim import Variational
from posterity.optim.watch import LEAST
from posterity.posterior import Posterior
from posterity.trees import trainable

SMALL = 100_000  # weights, frozen ones included
BUDGET = 0.03  # nats per example that the noise may cost, where the length of training comes from folds
SHARE = 0.3  # of the loss out of fold, that it may cost at most: noise gains little where hardly anything is lost


def usual_budget(unseen_loss: float | None) -> float | None:
    """Nats per example that noise may cost, by the mean loss of classes out of fold; None where it is unknown."""
    return None if unseen_loss is None else max(LEAST, min(BUDGET, SHARE * unseen_loss))


class VariationalLearner(Learner):
    """AdamW in `posterity.optim.Variational`: AdamW's usual learning rate, and widths at a fixed price.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of N(0, 1/prior), or a Diagonal, or an earlier Posterior, at temperature 1; it replaces weight
            decay. By default the prior decides widths alone.
        weight_decay: AdamW's decoupled decay, 0.01 unless there is a prior.
        betas: AdamW's.
        budget: Largest price of the noise, in nats per example; by default that of `Variational`, or where the length
            of training comes from folds, 0.03 and at most three tenths of the loss out of fold.
        draws: Draws of the weights for each batch.
        watch: Let the validation data, or examples that are left out of training, set the budget; with False the
            validation data are only looked at, and nothing is left out.
    """

    default_lr = 1e-3
    follows_adam = True
    watches_examples = True
    lr_of_small = 3e-3  # for networks of fewer weights than `SMALL`, which 1e-3 leaves unfinished in 2000 steps

    @classmethod
    def usual_lr(cls, model: nn.Module) -> float:
        small = sum(p.numel() for p in model.parameters()) < SMALL
        return cls.lr_of_small if small and not cls.fine_tunes(model) else super().usual_lr(model)

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: Prior | None = None,
        weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        budget: float | None = None,
        draws: int = 1,
        watch: bool = True,
    ) -> None:
        super().__init__(model, plan)
        require_whole("draws", draws)
        self.draws, self.watches = draws, watch
        decay = (0.01 if prior is None else 0.0) if weight_decay is None else weight_decay
        given = prior if prior is None or isinstance(prior, (int, float)) else as_prior(model, prior)
        self.optimizer: Variational = Variational(
            AdamW(trainable(model).items(), lr=plan.lr, betas=betas, weight_decay=decay),
            n=plan.n,
            total_steps=plan.steps,
            batch_size=None if plan.batch is None else min(plan.batch, plan.n),
            budget=usual_budget(plan.unseen_loss) if budget is None else budget,
            prior=given,
            seed=plan.seed,
        )

    def watch(self, data: Any, likelihood: Callable[[], Likelihood]) -> None:
        law = likelihood()
        if self.watches and (law.is_classification or law.noise_precision is not None):
            self.optimizer.watch(self.model, data, likelihood=likelihood)

    def scaled_by(self, scaler: GradScaler) -> None:
        self.optimizer.scaler = scaler

    def draw(self, step: int, sample: int) -> AbstractContextManager[object]:
        return self.optimizer.sampled_params(train=True)

    def figures(self) -> dict[str, float]:
        if not self.optimizer.meter.steps:
            return {}
        found = self.optimizer.diagnostics()
        names = ("temperature", "price", "effective_parameters")
        return {"sigma": found.sigma[1], **{name: getattr(found, name) for name in names}}

    def stopped(self) -> None:
        if self.optimizer.meter.steps:
            self.optimizer.finish()

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        found = self.optimizer.posterior(self.model, likelihood=likelihood, n=self.plan.n)
        self.prior = found.prior
        return self.hand_over(found.structure, likelihood, found.ess, found.output_temperature)
