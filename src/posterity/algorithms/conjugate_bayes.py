"""Bayes' rule for conjugate models: one exact step of the rule."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import require
from posterity.families import Beta, Dirichlet, Family, Gamma, NormalGamma
from posterity.gradients import Conjugate, ConjugateLoss
from posterity.rule import BayesianLearningRule

Q = TypeVar("Q", bound=Family)


def conjugate_bayes(prior: Q, *statistics: Tensor) -> Q:
    """Bayes' rule for a conjugate model.

    Posterior: a member of the prior's family.

    Where log p(y | θ) = ⟨t(y), T(θ)⟩ + const the expected loss is linear in μ, ∇_μ E_q[ℓ] = −Σᵢ t(yᵢ) whatever q is,
    and one step with ρ = 1 from any start is exact:

        λ ← (1 − ρ)λ + ρ(λ₀ + Σᵢ t(yᵢ)) = λ₀ + Σᵢ t(yᵢ).

    Args:
        prior: p₀, with natural parameters λ₀.
        statistics: t(yᵢ) of every example, one tensor (N, ...) for each block of T.
    """
    return BayesianLearningRule(Conjugate(), lr=1.0, prior=prior).step(prior, ConjugateLoss.of(*statistics))


def beta_bernoulli(prior: Beta, outcomes: Tensor) -> Beta:
    """The probability θ of an outcome, after seeing outcomes in {0, 1}.

    T(θ) = (log θ, log(1 − θ)) and log p(y | θ) = y log θ + (1 − y) log(1 − θ), so that t(y) = (y, 1 − y).
    """
    require(bool(((outcomes == 0) | (outcomes == 1)).all()), "outcomes", "zeros and ones", outcomes)
    return conjugate_bayes(prior, outcomes, 1.0 - outcomes)


def gamma_poisson(prior: Gamma, counts: Tensor) -> Gamma:
    """The rate θ of a Poisson law, after seeing counts.

    T(θ) = (log θ, θ) and log p(y | θ) = y log θ − θ + const, so that t(y) = (y, −1).
    """
    require(bool((counts >= 0).all()), "counts", "numbers >= 0", counts)
    return conjugate_bayes(prior, counts, -torch.ones_like(counts))


def dirichlet_categorical(prior: Dirichlet, labels: Tensor) -> Dirichlet:
    """The probabilities θ of K classes, after seeing labels in 0..K−1.

    T(θ) = log θ and log p(y | θ) = log θ_y, so that t(y) is the one-hot vector of y.
    """
    return conjugate_bayes(prior, F.one_hot(labels, prior.concentration.shape[-1]).to(prior.concentration))


def normal_gamma(prior: NormalGamma, numbers: Tensor) -> NormalGamma:
    """The mean x and the precision τ of a Gaussian, after seeing numbers.

    T = (log τ, τ, τx, τx²) and log p(y | x, τ) = ½ log τ − ½τ(y − x)² + const, so that t(y) = (½, −½y², y, −½).
    """
    half = torch.full_like(numbers, 0.5)
    return conjugate_bayes(prior, half, -0.5 * numbers**2, numbers, -half)
