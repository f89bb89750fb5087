"""The straight-through estimator: BayesBiNN with the delta method and without entropy."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms._bayesbinn import bayesbinn
from posterity.families import SignBernoulli
from posterity.gradients import Delta


def straight_through(lr: float = 0.1) -> Algorithm[SignBernoulli]:
    """The straight-through estimator (BinaryConnect).

    Posterior: independent signs with λ = ½ log p/(1−p); the latent weights are λ.

    BayesBiNN with the delta method: no noise and T → 0 make w = sign λ, the most probable state, and the factor s
    is taken to be 1. At temperature 0 the entropy is dropped, and with it the decay:

        λ ← λ − ρ ∇ℓ(sign λ).

    Args:
        lr: ρ.
    """
    return bayesbinn(lr).but(gradient=Delta(at="mode"), temperature=0.0)
