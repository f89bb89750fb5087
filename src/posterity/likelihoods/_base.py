"""The contract of a likelihood: what a model's outputs mean, and everything that the package computes from them.

A model maps an input to logits f (the natural parameters of the likelihood); these classes define what the logits mean.
All sums over examples happen elsewhere: every method returns one value per example. Class axes come last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.errors import InvalidInput, Undefined, expected, require


class Likelihood(ABC):
    """The distribution of a target y given a model's outputs f: −log p(y | f) and its derivatives in f.

    A new likelihood is one class: it defines the abstract methods, and of the others those that make sense for it.
    Once defined, `likelihood` finds it by its name, and posteriors that hold it can be saved and loaded.

    Attributes:
        name: Under which it is stored.
        is_classification: Whether targets are classes, so that `log_probs` and `correct` exist.
        has_class_axis: Whether the last axis of the outputs is one of classes, of which a target is one.
    """

    name: str
    is_classification: ClassVar[bool] = False
    has_class_axis: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = cls.__dict__.get("name")
        if isinstance(name, str):
            known = _BY_NAME.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise expected(f"name of {cls.__qualname__}", f"another than that of {known.__qualname__}", name)
            _BY_NAME[name] = cls

    @abstractmethod
    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihood −log p(y | f) of each example, all constants included."""

    def total_loss(self, f: Tensor, y: Tensor) -> Tensor:
        """The summed loss of all examples."""
        return self.loss(f, y).sum()

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

    def as_mean(self, y: Tensor, outputs: int) -> Tensor:
        """Targets in the form of a mean over so many outputs: labels become unit vectors."""
        return y

    def predicted(self, f: Tensor) -> Tensor:
        """What is predicted, as one number a target: the likeliest class of several, otherwise the mean."""
        return self.mean(f)

    def decide(self, mean: Tensor) -> Tensor:
        """The target to decide for, given expected targets: a label where targets are classes, otherwise the mean."""
        return mean

    def labels(self, y: Tensor) -> Tensor:
        """Targets as class labels, the likeliest where they are probabilities."""
        raise self.undefined("labels")

    def log_probs(self, f: Tensor) -> Tensor | None:
        """log p(y = k | f) with classes last (0 and 1 for binary targets); None where targets are not classes."""
        return None

    def log_prob(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """log p(y) of each target, given log-probabilities of classes, which may be averages over draws."""
        raise self.undefined("log_prob")

    def correct(self, f: Tensor, y: Tensor) -> Tensor | None:
        """Whether each target is the class that the outputs decide for; None where targets are not classes."""
        return None

    def margin(self, f: Tensor, y: Tensor) -> Tensor:
        """The lead of the given label over the next best class, in logits."""
        raise self.undefined("margin")

    @property
    def noise_precision(self) -> float | None:
        """β of Gaussian noise, y ~ N(f, 1/β), which training may learn; None for every other likelihood."""
        return None

    def with_noise_precision(self, precision: float) -> Likelihood:
        """The same likelihood with another precision of its Gaussian noise."""
        raise self.undefined("noise_precision")

    def noise_std(self, mean: Tensor) -> Tensor:
        """Standard deviation of y around an expected target E[y | f], where targets are not classes."""
        raise self.undefined("std")

    def quantile(self, f: Tensor, q: Tensor) -> Tensor:
        """The y with (1/S) Σ_s P(Y ≤ y | f_s) = q, for outputs (S, ...) of S draws, in float64."""
        raise self.undefined("quantiles")

    def outcomes(self, f: Tensor, variance: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Targets to expect, as weights (B,) and targets: all classes, or points of a cubature.

        Args:
            f: Outputs (B, K).
            variance: Their covariance V (B, K, K).
        """
        raise self.undefined("outcomes")

    def settings(self) -> dict[str, Any]:
        """What is needed to build this likelihood again: ``likelihood(**settings)``."""
        return {"name": self.name}

    def undefined(self, what: str) -> Undefined:
        """The error for a quantity that this likelihood does not have."""
        return Undefined(f"{what}: not defined for a {self.name} likelihood")


_BY_NAME: dict[str, type[Likelihood]] = {}


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


def check_same_shape(f: Tensor, y: Tensor, what: str) -> None:
    """Raise unless targets are shaped as what the model returns; one column too few has a cure."""
    if f.shape != y.shape:
        cure = "; give targets.unsqueeze(1)" if f.shape == (*y.shape, 1) else ""
        raise InvalidInput(f"{expected('targets', f'shape {tuple(f.shape)} like the {what}', tuple(y.shape))}{cure}")


def check_numbers(f: Tensor, y: Tensor) -> None:
    """Raise unless targets are finite numbers shaped as the outputs."""
    check_same_shape(f, y, "outputs")
    require(y.dtype != torch.bool, "targets", "numbers", "truth values")
    require(bool(torch.isfinite(y).all()), "targets", "finite numbers", "NaN or infinity")


def range_of(y: Tensor) -> str:
    """From where to where values go, for messages."""
    return f"values from {y.min().item():g} to {y.max().item():g}" if y.numel() else "nothing"
