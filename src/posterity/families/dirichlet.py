"""Beta and Dirichlet, with natural parameters α − 1 so that the base measure is constant."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families._base import CoordinateFamily, Coordinates
from posterity.families._inverse import concentration_from_mean_log
from posterity.families.checks import between, parameters
from posterity.families.gamma import log_standard_gamma
from posterity.families.special import digamma, gamma_divergence, gamma_entropy

# Gammas of rate one, divided by their sum, are Dirichlet, and the sum is a gamma that knows nothing of the shares.
# Entropies and divergences are therefore differences of those of gammas, whose terms do not cancel.


def _entropy(alpha: Tensor) -> Tensor:
    """H = Σ H(Gamma(α_k)) − H(Gamma(Σα)) − (K − 1)ψ(Σα): the last is the volume that the division takes."""
    total = alpha.sum(-1)
    return gamma_entropy(alpha).sum(-1) - gamma_entropy(total) - (alpha.shape[-1] - 1.0) * digamma(total)


def _divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """KL = Σ KL(Gamma(α_k) ‖ Gamma(β_k)) − KL(Gamma(Σα) ‖ Gamma(Σβ))."""
    a, b = alpha.sum(-1), beta.sum(-1)
    return gamma_divergence(alpha, beta, alpha / beta).sum(-1) - gamma_divergence(a, b, a / b)


class Dirichlet(CoordinateFamily):
    """Dirichlet(α) on probability vectors θ (..., K).

        T = log θ,  λ = α − 1,  μ = ψ(α) − ψ(Σα),  A = Σ log Γ(α_k) − log Γ(Σα)

    Args:
        concentration: α (..., K), positive, K ≥ 2.

    Examples:
        >>> q = Dirichlet([1.0, 2.0, 3.0])
        >>> same = Dirichlet.from_expectation(q.expectation)
        >>> torch.allclose(same.concentration, q.concentration)
        True
    """

    event_dims = (1,)
    theta_dims = 1

    def __init__(self, concentration: Any) -> None:
        (self.concentration,) = parameters({"concentration": (concentration, 1)})
        require(self.concentration.shape[-1] > 1, "classes", "at least 2", self.concentration.shape[-1])
        between("concentration", self.concentration, 0.0)

    @property
    def natural(self) -> Coordinates:
        return (self.concentration - 1.0,)

    @property
    def expectation(self) -> Coordinates:
        return (digamma(self.concentration) - digamma(self._total),)

    @property
    def _total(self) -> Tensor:
        return self.concentration.sum(-1, keepdim=True)

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        return cls(cls._blocks("natural", natural)[0] + 1.0)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        (mean_log,) = cls._blocks("expectation", expectation)
        between("log of the sum of exp(expectation[0])", mean_log.logsumexp(-1), -torch.inf, 0.0)
        return cls(concentration_from_mean_log(mean_log, None if start is None else start.concentration))

    def log_partition(self) -> Tensor:
        return torch.lgamma(self.concentration).sum(-1) - torch.lgamma(self._total).squeeze(-1)

    def _entropy(self) -> Tensor:
        return _entropy(self.concentration)

    def _divergence(self, other: Self) -> Tensor:
        return _divergence(self.concentration, other.concentration)

    def statistics(self, theta: Tensor) -> Coordinates:
        return (theta.log(),)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        shares = log_standard_gamma(self.concentration, n, generator).softmax(-1)
        return shares.clamp(min=torch.finfo(shares.dtype).tiny)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self._total

    @property
    def variance(self) -> Tensor:
        return self.mean * (1.0 - self.mean) / (self._total + 1.0)

    def to_torch(self) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(self.concentration)


class Beta(CoordinateFamily):
    """Beta(a, b) on probabilities.

        T = (log θ, log(1 − θ)),  λ = (a − 1, b − 1),  μ = (ψ(a), ψ(b)) − ψ(a + b),  A = log B(a, b)

    Args:
        a: Prior successes (...), positive.
        b: Prior failures (...), positive.
    """

    event_dims = (0, 0)

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = parameters({"a": (a, 0), "b": (b, 0)})
        between("a", self.a, 0.0)
        between("b", self.b, 0.0)

    @property
    def natural(self) -> Coordinates:
        return self.a - 1.0, self.b - 1.0

    @property
    def expectation(self) -> Coordinates:
        total = digamma(self.a + self.b)
        return digamma(self.a) - total, digamma(self.b) - total

    @classmethod
    def from_natural(cls, natural: Coordinates) -> Self:
        a_minus_one, b_minus_one = cls._blocks("natural", natural)
        return cls(a_minus_one + 1.0, b_minus_one + 1.0)

    @classmethod
    def from_expectation(cls, expectation: Coordinates, start: Self | None = None) -> Self:
        mean_log = torch.stack(cls._blocks("expectation", expectation), -1)
        between("log(exp(expectation[0]) + exp(expectation[1]))", mean_log.logsumexp(-1), -torch.inf, 0.0)
        warm = None if start is None else start._concentration
        return cls(*concentration_from_mean_log(mean_log, warm).unbind(-1))

    def log_partition(self) -> Tensor:
        return torch.lgamma(self.a) + torch.lgamma(self.b) - torch.lgamma(self.a + self.b)

    def _entropy(self) -> Tensor:
        return _entropy(self._concentration)

    def _divergence(self, other: Self) -> Tensor:
        return _divergence(self._concentration, other._concentration)

    @property
    def _concentration(self) -> Tensor:
        """α = (a, b), (..., 2): the same number as a Dirichlet's."""
        return torch.stack((self.a, self.b), -1)

    def statistics(self, theta: Tensor) -> Coordinates:
        return theta.log(), torch.log1p(-theta)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        success, failure = log_standard_gamma(self._concentration, n, generator).unbind(-1)
        limits = torch.finfo(success.dtype)
        return (success - failure).sigmoid().clamp(limits.tiny, 1.0 - 0.5 * limits.eps)

    @property
    def mean(self) -> Tensor:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> Tensor:
        total = self.a + self.b
        return self.mean * (self.b / total) / (total + 1.0)

    def to_torch(self) -> torch.distributions.Beta:
        return torch.distributions.Beta(self.a, self.b)
