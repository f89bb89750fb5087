"""Classes, one logit each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import Undefined, expected, require
from posterity.likelihoods._base import Likelihood, range_of

_NO_LABEL = -(2**40)  # that is ignored: no label is it, and torch's own choice of −100 would hide a wrong one


@dataclass(frozen=True)
class CategoricalLikelihood(Likelihood):
    """Classes y ∈ {0..K−1}: p(y | f) = softmax(f)_y. Targets are integers, or probabilities shaped as f."""

    name = "categorical"
    is_classification = True
    has_class_axis = True

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        log_p = torch.log_softmax(f, -1)
        if y.is_floating_point():
            return -(y * log_p).sum(-1)
        if f.ndim == 2:  # the same numbers, a quarter faster
            return F.nll_loss(log_p, y.long(), reduction="none", ignore_index=_NO_LABEL)
        return -log_p.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    def total_loss(self, f: Tensor, y: Tensor) -> Tensor:
        if f.ndim != 2 or y.is_floating_point():
            return super().total_loss(f, y)
        return F.cross_entropy(f, y.long(), reduction="sum", ignore_index=_NO_LABEL)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(f, -1) - self.as_mean(y, f.shape[-1]).to(f.dtype)

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

    def log_probs(self, f: Tensor) -> Tensor:
        return torch.log_softmax(f, -1)

    def log_prob(self, log_probs: Tensor, y: Tensor) -> Tensor:
        self.check(log_probs, y)
        return -self.loss(log_probs, y)

    def decide(self, mean: Tensor) -> Tensor:
        return mean.argmax(-1)

    def predicted(self, f: Tensor) -> Tensor:
        return f.argmax(-1)

    def labels(self, y: Tensor) -> Tensor:
        return y.argmax(-1) if y.is_floating_point() else y

    def as_mean(self, y: Tensor, outputs: int) -> Tensor:
        return y if y.is_floating_point() else F.one_hot(y.long(), outputs)

    def correct(self, f: Tensor, y: Tensor) -> Tensor:
        return f.argmax(-1) == self.labels(y)

    def margin(self, f: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise Undefined(f"margin: not defined for class probabilities as targets, {tuple(y.shape)}")
        given = y.long().unsqueeze(-1)
        others = f.scatter(-1, given, -torch.inf).amax(-1)
        return f.gather(-1, given).squeeze(-1) - others

    def outcomes(self, f: Tensor, variance: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        p = self.mean(f)
        return [(p[:, k], torch.full((len(f),), k, device=f.device)) for k in range(f.shape[-1])]

    def mean(self, f: Tensor) -> Tensor:
        return torch.softmax(f, -1)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        p = torch.softmax(f, -1)
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(p.shape[:-1])

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape[-1] >= 2, "outputs", "one logit for each of at least 2 classes", tuple(f.shape))
        if y.is_floating_point():
            if y.dim() < f.dim():
                raise expected("targets", "class labels as integers (targets.long())", f"labels as {y.dtype}")
            require(f.shape == y.shape, "class probabilities", f"shape {tuple(f.shape)}", tuple(y.shape))
            sums = bool((y >= 0).all()) and torch.allclose(y.sum(-1), torch.ones_like(y[..., 0]), atol=1e-3)
            require(sums, "class probabilities", "rows that sum to one", range_of(y))
            return
        require(f.shape[:-1] == y.shape, "labels", f"shape {tuple(f.shape[:-1])}", tuple(y.shape))
        inside = bool(((y >= 0) & (y < f.shape[-1])).all())
        require(inside, "labels", f"integers in 0..{f.shape[-1] - 1}", range_of(y))


def _laplacian(weights: Tensor) -> Tensor:
    """diag(row sums) − weights, (..., K, K).

    With p pᵀ for weights this is diag(p) − p pᵀ, where p − p² would cancel as soon as a class is all but certain.
    """
    off_diagonal = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
    return torch.diag_embed(off_diagonal.sum(-1)) - off_diagonal
