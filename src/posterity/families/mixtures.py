"""Mixtures: finitely many Gaussians, and the Student-t as infinitely many of one centre."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.families._base import Family
from posterity.families._conditional import ConditionalFamily
from posterity.families.categorical import Categorical
from posterity.families.checks import between, parameters
from posterity.families.gamma import UnitGamma
from posterity.families.gaussian import Gaussian
from posterity.families.special import log_gamma_ratio


class MixtureOfGaussians(ConditionalFamily):
    """q(θ) = Σ_k π_k N(θ | m_k, S_k⁻¹).

    Coordinates of the joint: (log π_k/π_K, S_k m_k, −S_k/2) and (π_k, π_k m_k, π_k(S_k⁻¹ + m_k m_kᵀ)).

    Args:
        mixing: q(z), a categorical over K components.
        conditional: The components, a Gaussian with batch shape (..., K).

    Examples:
        >>> q = MixtureOfGaussians.of([0.25, 0.75], [[-1.0], [1.0]], [[[4.0]], [[4.0]]])
        >>> q.mean
        tensor([0.5000], dtype=torch.float64)
    """

    mixing: Categorical
    conditional: Gaussian

    def __init__(self, mixing: Family, conditional: Family) -> None:
        if not (isinstance(mixing, Categorical) and isinstance(conditional, Gaussian)):
            raise expected("mixture", "a Categorical and a Gaussian", (mixing, conditional))
        components = conditional.mean.shape[:-1]
        wanted = mixing.mean.shape
        require(components == wanted, "batch of components", f"the shape {tuple(wanted)}", tuple(components))
        super().__init__(mixing, conditional)

    @classmethod
    def of(cls, weights: Any, means: Any, precisions: Any) -> Self:
        """The mixture with weights (..., K) that sum to one, means (..., K, d) and precisions (..., K, d, d)."""
        (weights,) = parameters({"weights": (weights, 1)})
        total = weights.sum(-1)
        require(bool(((total - 1.0).abs() < 1e-6).all()), "weights", "weights that sum to one", total.tolist())
        between("weights", weights, 0.0)
        return cls(Categorical(weights[..., :-1].log() - weights[..., -1:].log()), Gaussian(means, precisions))

    @property
    def weights(self) -> Tensor:
        """π (..., K)."""
        return self.mixing.mean

    def exposure(self) -> tuple[Tensor, ...]:
        return self.weights[..., None], self.weights[..., None, None]

    def _joint(self, theta: Tensor) -> Tensor:
        return self.mixing.log_probabilities + self.conditional.log_prob(theta.unsqueeze(-2))

    def log_prob(self, theta: Tensor) -> Tensor:
        return self._joint(theta).logsumexp(-1)

    def responsibilities(self, theta: Tensor) -> Tensor:
        """q(z = k | θ), (..., K)."""
        return self._joint(theta).softmax(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        component = self.mixing.sample(n, generator)
        return (component.unsqueeze(-1) * self.conditional.sample(n, generator)).sum(-2)

    @property
    def mean(self) -> Tensor:
        return (self.weights.unsqueeze(-1) * self.conditional.mean).sum(-2)

    @property
    def variance(self) -> Tensor:
        within = self.conditional.variance + (self.conditional.mean - self.mean.unsqueeze(-2)) ** 2
        return (self.weights.unsqueeze(-1) * within).sum(-2)

    def to_torch(self) -> torch.distributions.MixtureSameFamily:
        """The same mixture as a torch distribution."""
        choice = torch.distributions.Categorical(logits=self.mixing.log_probabilities)
        return torch.distributions.MixtureSameFamily(choice, self.conditional.to_torch())


class StudentT(ConditionalFamily):
    """Student's t as a mixture of scales: u ~ Gamma(ν/2, ν/2), θ | u ~ N(m, (uS)⁻¹).

    Coordinates of the joint: T = (log u − u, uθ, uθθᵀ), λ = (ν/2 − 1, Sm, −S/2), and because E[u] = 1 the
    expectations of the last two blocks, m and S⁻¹ + mmᵀ, are those of the Gaussian N(m, S⁻¹).

    Args:
        mixing: q(u), the gamma of mean one with shape ν/2.
        conditional: N(m, S⁻¹), the conditional at u = 1.
    """

    mixing: UnitGamma
    conditional: Gaussian

    def __init__(self, mixing: Family, conditional: Family) -> None:
        if not (isinstance(mixing, UnitGamma) and isinstance(conditional, Gaussian)):
            raise expected("Student-t", "a UnitGamma and a Gaussian", (mixing, conditional))
        batch, wanted = conditional.mean.shape[:-1], mixing.shape.shape
        require(batch == wanted, "batch of the Gaussian", f"the shape {tuple(wanted)}", tuple(batch))
        super().__init__(mixing, conditional)

    @classmethod
    def of(cls, degrees: Any, location: Any, precision: Any) -> Self:
        """The Student-t with ν (...) degrees of freedom, location m (..., d) and precision S (..., d, d)."""
        degrees, location, precision = parameters(
            {"degrees": (degrees, 0), "location": (location, 1), "precision": (precision, 2)}
        )
        between("degrees", degrees, 0.0)
        return cls(UnitGamma(0.5 * degrees), Gaussian(location, precision))

    @property
    def degrees(self) -> Tensor:
        """ν, the degrees of freedom."""
        return 2.0 * self.mixing.shape

    def exposure(self) -> tuple[Tensor, ...]:
        one = torch.ones_like(self.mixing.shape)
        return one[..., None], one[..., None, None]

    def log_prob(self, theta: Tensor) -> Tensor:
        half, dims = self.mixing.shape, 0.5 * theta.shape[-1]
        peak = self.conditional.log_prob(self.conditional.mean)
        half_distance = peak - self.conditional.log_prob(theta)  # ½(θ − m)ᵀS(θ − m)
        return peak + log_gamma_ratio(half, dims) - (half + dims) * torch.log1p(half_distance / half)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        scale = self.mixing.sample(n, generator).unsqueeze(-1)
        centre = self.conditional.mean
        return centre + (self.conditional.sample(n, generator) - centre) / scale.sqrt()

    @property
    def mean(self) -> Tensor:
        """m, which exists for ν > 1 (NaN otherwise)."""
        return torch.where(self.degrees.unsqueeze(-1) > 1.0, self.conditional.mean, torch.nan)

    @property
    def variance(self) -> Tensor:
        """diag(S⁻¹) ν/(ν − 2), infinite for ν ≤ 2."""
        degrees = self.degrees.unsqueeze(-1)
        return torch.where(degrees > 2.0, self.conditional.variance * degrees / (degrees - 2.0), torch.inf)
