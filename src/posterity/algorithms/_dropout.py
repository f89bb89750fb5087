"""Dropout: spike-and-slab weights, the delta method in the slab, one random mask a step."""

import torch

from posterity.algorithms._base import Algorithm, fixed
from posterity.families import FixedGaussian
from posterity.gradients import DropoutMasks
from posterity.rule import BayesianLearningRule


def dropout(
    lr: float = 0.1, keep: float = 0.5, masks: int | None = 1, generator: torch.Generator | None = None
) -> Algorithm[FixedGaussian]:
    """Dropout.

    Posterior: for every weight (or unit) a mixture of a slab N(m, 1) and a spike at zero, with a fixed weight π of
    the slab.

    The natural gradient of the slab is the expectation given that the slab was chosen, E[∇ⱼℓ | zⱼ = 1], which is
    E[zⱼ/π ∇ⱼℓ]. The delta method in the slab and a random mask z for the spikes of all weights give, with the
    convention of torch (kept weights are divided by π),

        m ← m − ρ z/π ∘ ∇ℓ(z/π ∘ m),   zⱼ ~ Bernoulli(π).

    Args:
        lr: ρ.
        keep: π, the probability that a weight is kept.
        masks: Masks a step; None takes the expectation over all of them.
        generator: Source of randomness; torch's own when left out.
    """
    return Algorithm(fixed, BayesianLearningRule(DropoutMasks(keep, masks, generator), lr=lr))
