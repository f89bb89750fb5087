"""The learner of Laplace: AdamW to the mode, then the curvature there."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from posterity.batches import Batches
from posterity.errors import require
from posterity.learning._laplace import laplace
from posterity.learning.learners._base import TrainingPlan
from posterity.learning.learners.point import AdamWLearner
from posterity.likelihoods import Likelihood
from posterity.posterior import Posterior


class LaplaceLearner(AdamWLearner):
    """AdamW, and `laplace` at the weights it finds.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of the Gaussian prior while training; weight decay is prior/N.
        structure: Of the curvature: "diag", "kron", "full" or "last_layer".
        prior_precision: Precision of the prior in the posterior, or how it is learnt.
        temperature: Of the posterior, as `laplace` takes it.
    """

    # `laplace` sums the plain loss of all targets: it would fail after training, or find the curvature of another loss.
    refused = ("class_weights", "ignore_index")
    noise_from_folds = False  # the evidence chooses it

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: float = 1.0,
        structure: str = "kron",
        prior_precision: Any = None,
        temperature: float | None = None,
    ) -> None:
        super().__init__(model, plan, prior=prior)
        self.structure, self.prior_precision, self.temperature = structure, prior_precision, temperature

    @classmethod
    def check(cls, f: Tensor, likelihood: Likelihood) -> None:
        maps = likelihood.has_class_axis and f.ndim > 3
        wanted = "(batch, ..., classes) for Laplace; flatten maps to (batch, pixels, classes)"
        require(not maps, "outputs", wanted, tuple(f.shape))

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        return laplace(
            self.model,
            data,
            likelihood=likelihood,
            structure=self.structure,
            prior_precision=self.prior_precision,
            temperature=self.temperature,
            noise_precision="marglik" if self.plan.learns_noise else None,
            n=self.plan.n,
            class_names=self.plan.class_names,
        )
