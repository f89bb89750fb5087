"""Learners of a point: AdamW and SGD."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, AdamW

from posterity.batches import Batches
from posterity.errors import expected
from posterity.learning.learners._base import Learner, TrainingPlan, as_prior
from posterity.likelihoods import Likelihood
from posterity.posterior import Ensemble, Posterior
from posterity.trees import snapshot, trainable


class PointLearner(Learner):
    """The mode alone: a posterior that is an ensemble of one."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, *, prior: float = 1.0) -> None:
        super().__init__(model, plan)
        if not isinstance(prior, (int, float)):
            raise expected("prior", "a precision, the same for all weights", type(prior).__name__)
        self.prior = as_prior(model, prior)
        self.weight_decay = float(prior) / plan.n

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        return self.hand_over(Ensemble([snapshot(trainable(self.model))]), likelihood)


class AdamWLearner(PointLearner):
    """AdamW with decoupled weight decay `prior`/N."""

    default_lr = 1e-3
    follows_adam = True

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, *, prior: float = 1.0, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(model, plan, prior=prior)
        parameters = trainable(model).values()
        self.optimizer = AdamW(parameters, lr=plan.lr, betas=betas, weight_decay=self.weight_decay)


class SGDLearner(PointLearner):
    """SGD with momentum and weight decay `prior`/N: descent on the log-joint.

    Where the noise of a regression is learnt, the learning rate is divided by its precision β: the gradient grows with
    β, and a step that was stable when training began would not be when the fit has become good.
    """

    default_lr = 0.05
    noise_from_folds = False  # its steps follow the noise as it is learnt

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, *, prior: float = 1.0, momentum: float = 0.9, nesterov: bool = False
    ) -> None:
        super().__init__(model, plan, prior=prior)
        self.optimizer = SGD(
            trainable(model).values(),
            lr=plan.lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=self.weight_decay,
        )

    def scale(self, likelihood: Likelihood) -> float:
        return 1 / likelihood.noise_precision if self.plan.learns_noise and likelihood.noise_precision else 1.0
