"""What training minimises: the mean loss over the targets of a batch, and what is counted on the way.

The mean is torch's: Σᵢ wᵢ ℓᵢ / Σᵢ wᵢ with wᵢ the weight of target i's class, zero where it is ignored. Sum and mass
are kept apart, so that batches seen one after the other give exactly the mean of the batch they make together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import expected, require
from posterity.likelihoods import Likelihood, classes_last, likelihood


@dataclass(frozen=True)
class Objective:
    """A likelihood with torch's options on its loss.

    Args:
        likelihood: What the outputs mean.
        class_weights: One weight for each class.
        label_smoothing: ε in targets (1 − ε) onehot(y) + ε/K.
        ignore_index: A label that means "no target here".
    """

    likelihood: Likelihood
    class_weights: Tensor | None = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.label_smoothing < 1, "label_smoothing", "a number in [0, 1)", self.label_smoothing)
        weights = self.class_weights
        if weights is not None and not bool((weights >= 0).all() and 0 < weights.sum() < torch.inf):
            raise expected("class_weights", "finite numbers >= 0, not all of them 0", weights.tolist())
        given = {
            "class_weights": self.class_weights is not None,
            "label_smoothing": self.label_smoothing > 0,
            "ignore_index": self.ignore_index is not None,
        }
        for name, there in given.items():
            fits = self.likelihood.has_class_axis or not there
            require(fits, name, "a categorical likelihood beside it", self.likelihood.name)

    def mass(self, y: Tensor) -> Tensor:
        """Σ w: by how much the summed loss of these targets is divided."""
        if not self.likelihood.has_class_axis or y.is_floating_point():
            return _number(y.shape[:-1].numel(), y.device)
        if self.plain:
            return _number(y.numel(), y.device)
        weight = self._valid(y).float()
        if self.class_weights is not None:
            weight = weight * self.class_weights.to(y.device)[self._known(y)]
        return weight.sum()

    def total(self, f: Tensor, y: Tensor) -> Tensor:
        """Σ w ℓ over these targets."""
        if not self.likelihood.has_class_axis:
            return self.likelihood.loss(f, y.to(f.dtype)).sum()
        f = classes_last(f)
        if self.plain and not y.is_floating_point():
            return self.likelihood.total_loss(f, y.long())
        if self.class_weights is None and self.label_smoothing == 0:
            target: Tensor = y.to(f.dtype) if y.is_floating_point() else self._known(y)
        else:
            target = self._soft(f, y)
        return (self.likelihood.loss(f, target) * self._valid(y)).sum()

    def correct(self, f: Tensor, y: Tensor) -> Tensor | None:
        """How many targets the outputs get right, or the summed squared error of a regression (None for counts)."""
        if self.likelihood.noise_precision is not None:
            return (f - y).square().sum()
        right = self.likelihood.correct(classes_last(f) if self.likelihood.has_class_axis else f, y)
        if right is None:
            return None
        return (right & self._valid(y)).sum() if self.ignore_index is not None else right.sum()

    def count(self, y: Tensor) -> Tensor:
        """How many targets `correct` judges."""
        if self.ignore_index is not None:
            return self._valid(y).sum() * torch.ones((), device=y.device)
        labels = self.likelihood.has_class_axis and y.is_floating_point()  # probabilities, the classes last
        return _number(y.shape[:-1].numel() if labels else y.numel(), y.device)

    def check(self, f: Tensor, y: Tensor) -> None:
        """Raise a clear error where targets, weights or likelihood do not fit the outputs."""
        # The last axis belongs to one example: without it a batch would count as a single target.
        require(f.ndim > 1, "outputs", "shape (batch, ..., outputs), with outputs = 1 for a single one", tuple(f.shape))
        if self.likelihood.has_class_axis:
            labelled = self.ignore_index is None or not y.is_floating_point()
            require(labelled, "targets", "labels, among which ignore_index may occur", "class probabilities")
            f = classes_last(f)
            require(
                f.shape[-1] > 1,
                "outputs",
                "at least two logits for a categorical likelihood (labels shaped as the outputs are binary)",
                tuple(f.shape),
            )
            if self.class_weights is not None:
                length = len(self.class_weights)
                require(length == f.shape[-1], "class_weights", f"{f.shape[-1]} weights, one a class", length)
        self.likelihood.check(f, self._known(y))

    def with_precision(self, precision: float) -> Objective:
        """The same objective under another noise precision."""
        return replace(self, likelihood=self.likelihood.with_noise_precision(precision))

    @property
    def plain(self) -> bool:
        """Whether every label counts alike, as it does by default."""
        return self.class_weights is None and self.label_smoothing == 0 and self.ignore_index is None

    def _valid(self, y: Tensor) -> Tensor:
        if y.is_floating_point():
            return torch.ones((), dtype=torch.bool, device=y.device).expand(y.shape[:-1])
        return torch.ones_like(y, dtype=torch.bool) if self.ignore_index is None else y != self.ignore_index

    def _known(self, y: Tensor) -> Tensor:
        """The targets, labels as indices (bytes would be read as a mask), with class 0 where there is none."""
        return y if y.is_floating_point() else torch.where(self._valid(y), y, 0).long()

    def _soft(self, f: Tensor, y: Tensor) -> Tensor:
        """Smoothed and weighted targets w_k ((1 − ε) onehot(y)_k + ε/K)."""
        classes = f.shape[-1]
        onehot = y if y.is_floating_point() else F.one_hot(self._known(y), classes)
        soft = (1 - self.label_smoothing) * onehot.to(f.dtype) + self.label_smoothing / classes
        return soft if self.class_weights is None else soft * self.class_weights.to(f)


@lru_cache(maxsize=64)
def _number(value: int, device: torch.device) -> Tensor:
    """A number as a read-only tensor, cached because most batches are of one size."""
    return torch.tensor(float(value), device=device)


def infer_likelihood(f: Tensor, y: Tensor) -> Likelihood:
    """The likelihood that types and shapes suggest.

    Integer labels, one for each row of outputs, are classes; integers or booleans shaped as the outputs are binary
    labels; floating-point targets are a regression.
    """
    if y.is_floating_point():
        if f.shape[-1] > 1 and y.shape in (f.shape[:-1], (*f.shape[:-1], 1)) and bool((y == y.round()).all()):
            raise expected("targets", "class labels as integers (targets.long())", f"labels as {y.dtype}")
        return likelihood("gaussian")
    if y.dtype != torch.bool and y.shape == classes_last(f).shape[:-1]:
        return likelihood("categorical")
    if y.shape == f.shape:
        return likelihood("bernoulli")
    shape, kind = tuple(f.shape), str(y.dtype).removeprefix("torch.")
    wanted = f"labels of shape {shape[:-1]} for classes, or {shape} for binary ones, like the outputs"
    raise expected("targets", wanted, f"{kind} {tuple(y.shape)}")
