"""Bayes' rule for conjugate models: one exact step of the rule."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.batches import one_tensor
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
    """Bayes' rule for the probability θ of an outcome, after seeing outcomes in {0, 1}.

    Posterior: q = Beta(a, b), T(θ) = (log θ, log(1 − θ)), λ = (a − 1, b − 1).

    The loss −Σ y log θ + (1 − y) log(1 − θ) is linear in T, so that one step with ρ = 1 is exact:

        λ ← λ₀ + Σᵢ (yᵢ, 1 − yᵢ).
    """
    successes = one_tensor(outcomes).to(prior.a)
    require(bool(((successes == 0) | (successes == 1)).all()), "outcomes", "zeros and ones", outcomes)
    return conjugate_bayes(prior, successes, 1.0 - successes)


def gamma_poisson(prior: Gamma, counts: Tensor) -> Gamma:
    """Bayes' rule for the rate θ of a Poisson law, after seeing counts.

    Posterior: q = Gamma(a, b), T(θ) = (log θ, θ), λ = (a − 1, −b).

    The loss −Σ y log θ − θ is linear in T, so that one step with ρ = 1 is exact:

        λ ← λ₀ + Σᵢ (yᵢ, −1).
    """
    counts = one_tensor(counts).to(prior.shape)
    require(bool(((counts >= 0) & (counts == counts.round())).all()), "counts", "whole numbers >= 0", counts)
    return conjugate_bayes(prior, counts, -torch.ones_like(counts))


def dirichlet_categorical(prior: Dirichlet, labels: Tensor) -> Dirichlet:
    """Bayes' rule for the probabilities θ of K classes, after seeing labels in 0..K−1.

    Posterior: q = Dirichlet(α), T(θ) = log θ, λ = α − 1.

    The loss −Σ log θ_y is linear in T, so that one step with ρ = 1 is exact, with e_y the one-hot vector of y:

        λ ← λ₀ + Σᵢ e_{yᵢ}.
    """
    labels, classes = one_tensor(labels), prior.concentration.shape[-1]
    inside = not labels.is_floating_point() and bool(((labels >= 0) & (labels < classes)).all())
    require(inside, "labels", f"integers in 0..{classes - 1}", labels)
    return conjugate_bayes(prior, F.one_hot(labels.long(), classes).to(prior.concentration))


def normal_gamma(prior: NormalGamma, numbers: Tensor) -> NormalGamma:
    """Bayes' rule for the mean x and the precision τ of a Gaussian, after seeing numbers.

    Posterior: q = NormalGamma(m, κ, a, b), T = (log τ, τ, τx, τx²), λ = (a − ½, −b − ½κm², κm, −κ/2).

    The loss −Σ ½ log τ − ½τ(y − x)² is linear in T, so that one step with ρ = 1 is exact:

        λ ← λ₀ + Σᵢ (½, −½yᵢ², yᵢ, −½).
    """
    numbers = one_tensor(numbers).to(prior.location)
    fine = len(numbers) > 0 and bool(numbers.isfinite().all())
    require(fine, "numbers", "at least one, and all of them finite", numbers)
    half, centre = torch.full_like(numbers, 0.5), numbers.mean(0)
    # Bayes' rule does not care where zero is; squares of numbers that stand far from it lose what they differ by.
    near, away = NormalGamma(prior.location - centre, prior.strength, prior.shape, prior.rate), numbers - centre
    q = conjugate_bayes(near, half, -0.5 * away**2, away, -half)
    return NormalGamma(q.location + centre, q.strength, q.shape, q.rate)
