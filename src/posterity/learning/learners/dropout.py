"""The learner of MC dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from posterity.batches import Batches
from posterity.learning.dropout_layers import dropout_rates, insert_dropout
from posterity.learning.learners._base import TrainingPlan
from posterity.learning.learners.point import AdamWLearner
from posterity.likelihoods import Likelihood
from posterity.posterior import Dropout, Posterior
from posterity.trees import snapshot, trainable


class DropoutLearner(AdamWLearner):
    """AdamW on a network with dropout; the posterior keeps the masks random.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        p: Where given, dropout of this rate is inserted first (see `insert_dropout`).
        after: Where to insert it.
        prior: Precision of the Gaussian prior; weight decay is prior/N.
    """

    mixes = False  # the masks of a network are no component of a mixture

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        p: float | None = None,
        after: Sequence[str] | None = None,
        prior: float = 1.0,
    ) -> None:
        if p is not None:
            insert_dropout(model, p, after)
        self.rates = dropout_rates(model)
        super().__init__(model, plan, prior=prior)

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        return self.hand_over(Dropout(snapshot(trainable(self.model)), self.rates), likelihood)
