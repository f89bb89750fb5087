"""Likelihoods of the last layer: loss, its first and second derivatives in the logits, mean and sampling.

A model maps an input to logits f (the natural parameters of the likelihood); these classes say what the logits
mean. All sums over examples happen elsewhere: every method returns one value per example. Class axes come last.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import expected, require, require_positive
from posterity.trees import state_dtype


class Likelihood(ABC):
    """What a model's outputs f say about a target y: −log p(y | f) and its derivatives in f."""

    name: str

    @abstractmethod
    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihood −log p(y | f) of each example, all constants included."""

    @abstractmethod
    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        """First derivative of the loss in f, shaped as f: e = mean(f) − y for canonical links."""

    @abstractmethod
    def curvature(self, f: Tensor) -> Tensor:
        """Second derivative of the loss in f, (..., K, K): Λ, independent of y for canonical links."""

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """Second derivative of the loss in f at these targets, (..., K, K): the curvature, for canonical links."""
        return self.curvature(f)

    def total_curvature(self, f: Tensor) -> Tensor:
        """Σ Λ over all examples, (K, K)."""
        return self.curvature(f).flatten(0, -3).sum(0)

    @abstractmethod
    def curvature_root(self, f: Tensor) -> Tensor:
        """A square root of the curvature, (..., K, R) with R Rᵀ = Λ."""

    @abstractmethod
    def mean(self, f: Tensor) -> Tensor:
        """Expected target E[y | f]."""

    @abstractmethod
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a target for each example."""

    @abstractmethod
    def check(self, f: Tensor, y: Tensor) -> None:
        """Raise a clear error where targets do not fit outputs."""

    def as_targets(self, f: Tensor, y: Tensor) -> Tensor:
        """Targets in the dtype of the outputs (labels stay integers), or an error where they do not fit."""
        y = y.to(f.dtype) if y.is_floating_point() else y
        self.check(f, y)
        return y

    def settings(self) -> dict[str, Any]:
        """What is needed to build this likelihood again: ``likelihood(**settings)``."""
        return {"name": self.name}


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """Regression: y ~ N(f, 1/precision), the same noise for every output."""

    precision: float = 1.0
    name = "gaussian"

    def __post_init__(self) -> None:
        require_positive("precision", self.precision)

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        constant = 0.5 * math.log(2 * math.pi / self.precision)
        return (0.5 * self.precision * (f - y) ** 2 + constant).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return self.precision * (f - y)

    def curvature(self, f: Tensor) -> Tensor:
        return self.precision * torch.eye(f.shape[-1], dtype=f.dtype, device=f.device).expand(*f.shape, f.shape[-1])

    def curvature_root(self, f: Tensor) -> Tensor:
        return self.curvature(f) / math.sqrt(self.precision)

    def mean(self, f: Tensor) -> Tensor:
        return f

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + noise / math.sqrt(self.precision)

    def check(self, f: Tensor, y: Tensor) -> None:
        _check_numbers(f, y)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "precision": float(self.precision)}


@dataclass(frozen=True)
class BernoulliLikelihood(Likelihood):
    """Binary targets y ∈ {0, 1}, one logit each: p(y = 1) = σ(f); several outputs are independent labels."""

    name = "bernoulli"

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(f, y.to(f.dtype), reduction="none").sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(f) - y.to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        return torch.diag_embed(torch.sigmoid(f) * torch.sigmoid(-f))

    def curvature_root(self, f: Tensor) -> Tensor:
        return torch.diag_embed((0.5 * (F.logsigmoid(f) + F.logsigmoid(-f))).exp())

    def mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(f), generator=generator)

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape == y.shape, "targets", f"shape {tuple(f.shape)} like the logits", tuple(y.shape))
        require(bool(((y >= 0) & (y <= 1)).all()), "targets", "values in [0, 1]", _range(y))


@dataclass(frozen=True)
class CategoricalLikelihood(Likelihood):
    """Classes y ∈ {0..K−1}: p(y | f) = softmax(f)_y. Targets are integers, or probabilities shaped as f."""

    name = "categorical"

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        log_p = torch.log_softmax(f, -1)
        if y.is_floating_point():
            return -(y * log_p).sum(-1)
        return -log_p.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        target = y if y.is_floating_point() else F.one_hot(y.long(), f.shape[-1])
        return torch.softmax(f, -1) - target.to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        p = torch.softmax(f, -1)
        return _laplacian(p.unsqueeze(-1) * p.unsqueeze(-2))

    def total_curvature(self, f: Tensor) -> Tensor:
        # One matrix product instead of K² numbers for each example: thousands of classes stay cheap.
        p = torch.softmax(f, -1).flatten(0, -2)
        return _laplacian(p.T @ p)

    def curvature_root(self, f: Tensor) -> Tensor:
        # (diag(√p) − p√pᵀ)(diag(√p) − √p pᵀ) = diag(p) − ppᵀ, since √pᵀ√p = 1.
        log_p = torch.log_softmax(f, -1)
        p, root = log_p.exp(), (0.5 * log_p).exp()
        return torch.diag_embed(root) - p.unsqueeze(-1) * root.unsqueeze(-2)

    def mean(self, f: Tensor) -> Tensor:
        return torch.softmax(f, -1)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        p = torch.softmax(f, -1)
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(p.shape[:-1])

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape[-1] >= 2, "outputs", "one logit for each of at least 2 classes", tuple(f.shape))
        if y.is_floating_point():
            require(f.shape == y.shape, "class probabilities", f"shape {tuple(f.shape)}", tuple(y.shape))
            sums = bool((y >= 0).all()) and torch.allclose(y.sum(-1), torch.ones_like(y[..., 0]), atol=1e-3)
            require(sums, "class probabilities", "rows that sum to one", _range(y))
            return
        require(f.shape[:-1] == y.shape, "labels", f"shape {tuple(f.shape[:-1])}", tuple(y.shape))
        inside = bool(((y >= 0) & (y < f.shape[-1])).all())
        require(inside, "labels", f"integers in 0..{f.shape[-1] - 1}", _range(y))


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """Counts y ∈ {0, 1, ...} with log-rate f: p(y | f) = Poisson(e^f)."""

    name = "poisson"

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        y = y.to(torch.promote_types(f.dtype, y.dtype))
        return (f.exp() - y * f + torch.lgamma(y + 1.0)).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return f.exp() - y.to(torch.promote_types(f.dtype, y.dtype))

    def curvature(self, f: Tensor) -> Tensor:
        return torch.diag_embed(f.exp())

    def curvature_root(self, f: Tensor) -> Tensor:
        return torch.diag_embed((0.5 * f).exp())

    def mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(f.exp(), generator=generator)

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape == y.shape, "counts", f"shape {tuple(f.shape)} like the log-rates", tuple(y.shape))
        whole = (y >= 0) & (y % 1 == 0)
        require(bool(whole.all()), "counts", "whole numbers >= 0", _range(y))


@dataclass(frozen=True)
class StudentTLikelihood(Likelihood):
    """Regression with outliers: y = f + scale · t_ν. Large errors are forgiven, and the loss is not convex in f.

    The curvature is the Fisher information (ν + 1)/((ν + 3) scale²), which does not depend on y; `hessian` does.
    """

    degrees: float = 4.0
    scale: float = 1.0
    name = "student_t"

    def __post_init__(self) -> None:
        require_positive("degrees", self.degrees)
        require_positive("scale", self.scale)

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        half, nu = 0.5 * (self.degrees + 1), self.degrees
        constant = math.lgamma(0.5 * nu) - math.lgamma(half) + 0.5 * math.log(nu * math.pi) + math.log(self.scale)
        return (constant + half * torch.log1p(((f - y) / self.scale) ** 2 / nu)).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        error = f - y
        return (self.degrees + 1) * error / (self.degrees * self.scale**2 + error**2)

    def curvature(self, f: Tensor) -> Tensor:
        information = (self.degrees + 1) / ((self.degrees + 3) * self.scale**2)
        return information * torch.eye(f.shape[-1], dtype=f.dtype, device=f.device).expand(*f.shape, f.shape[-1])

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        squared, level = (f - y) ** 2, self.degrees * self.scale**2
        return torch.diag_embed((self.degrees + 1) * (level - squared) / (level + squared) ** 2)

    def curvature_root(self, f: Tensor) -> Tensor:
        return self.curvature(f).sqrt()

    def mean(self, f: Tensor) -> Tensor:
        return f

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        normal = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        shape = torch.full(f.shape, 0.5 * self.degrees, dtype=state_dtype(f.dtype), device=f.device)
        mixing = torch._standard_gamma(shape, generator=generator) / shape  # unknown to torch in half precision
        return f + (self.scale * normal / mixing.sqrt()).to(f.dtype)

    def check(self, f: Tensor, y: Tensor) -> None:
        _check_numbers(f, y)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "degrees": float(self.degrees), "scale": float(self.scale)}


def classes_last(logits: Tensor, axis: int | None = None) -> Tensor:
    """Logits of classes with the class axis last, where every likelihood expects it.

    Args:
        logits: Outputs of a model.
        axis: Where the classes are. Unless given: on axis 1 of maps, (N, K, H, W) or with more axes, as torch's
            convolutions leave them; otherwise last, as in (N, K) and in sequences (N, T, K).
    """
    if axis is None:
        axis = 1 if logits.ndim >= 4 else -1
    if axis == -1:
        return logits
    fits = axis != 0 and axis in range(1 - logits.ndim, logits.ndim)
    require(fits, "class_axis", f"an axis of the outputs {tuple(logits.shape)} after the first", axis)
    return logits.movedim(axis, -1)


_BY_NAME: dict[str, type[Likelihood]] = {
    "gaussian": GaussianLikelihood,
    "bernoulli": BernoulliLikelihood,
    "categorical": CategoricalLikelihood,
    "poisson": PoissonLikelihood,
    "student_t": StudentTLikelihood,
}


def likelihood(name: str | Likelihood, **settings: Any) -> Likelihood:
    """A likelihood by name ("gaussian", "bernoulli", "categorical", "poisson", "student_t"), or the one that was given.

    Examples:
        >>> likelihood("gaussian", precision=4.0)
        GaussianLikelihood(precision=4.0)
    """
    if isinstance(name, Likelihood):
        require(not settings, "likelihood", "a name beside settings, or a likelihood that has its own", name)
        return name
    if name not in _BY_NAME:
        raise expected("likelihood", f"one of {sorted(_BY_NAME)}", name)
    return _BY_NAME[name](**settings)


def _laplacian(weights: Tensor) -> Tensor:
    """diag(row sums) − weights, (..., K, K).

    With p pᵀ for weights this is diag(p) − p pᵀ, where p − p² would cancel as soon as a class is all but certain.
    """
    off_diagonal = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
    return torch.diag_embed(off_diagonal.sum(-1)) - off_diagonal


def _check_numbers(f: Tensor, y: Tensor) -> None:
    require(f.shape == y.shape, "targets", f"shape {tuple(f.shape)} like the outputs", tuple(y.shape))
    require(y.dtype != torch.bool, "targets", "numbers", "truth values")
    require(bool(torch.isfinite(y).all()), "targets", "finite numbers", "NaN or infinity")


def _range(y: Tensor) -> str:
    return f"values from {y.min().item():g} to {y.max().item():g}" if y.numel() else "nothing"
