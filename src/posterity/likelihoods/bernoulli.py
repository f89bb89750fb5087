"""Binary targets, one logit each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import Undefined, require
from posterity.likelihoods._base import Likelihood, check_same_shape, range_of


@dataclass(frozen=True)
class BernoulliLikelihood(Likelihood):
    """Binary targets y ∈ {0, 1}, one logit each: p(y = 1) = σ(f); several outputs are independent labels."""

    name = "bernoulli"
    is_classification = True

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(f, y.to(f.dtype), reduction="none").sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(f) - y.to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        return torch.diag_embed(torch.sigmoid(f) * torch.sigmoid(-f))

    def curvature_root(self, f: Tensor) -> Tensor:
        return torch.diag_embed((0.5 * (F.logsigmoid(f) + F.logsigmoid(-f))).exp())

    def log_probs(self, f: Tensor) -> Tensor:
        return torch.stack((F.logsigmoid(-f), F.logsigmoid(f)), -1)

    def log_prob(self, log_probs: Tensor, y: Tensor) -> Tensor:
        self.check(log_probs[..., 1], y)
        y = y.to(log_probs.dtype)
        return y * log_probs[..., 1] + (1 - y) * log_probs[..., 0]

    def decide(self, mean: Tensor) -> Tensor:
        return (mean > 0.5).long()

    def labels(self, y: Tensor) -> Tensor:
        return y.long()

    def correct(self, f: Tensor, y: Tensor) -> Tensor:
        return (f > 0) == (y > 0.5)

    def margin(self, f: Tensor, y: Tensor) -> Tensor:
        return ((2 * y - 1) * f).sum(-1)

    def outcomes(self, f: Tensor, variance: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        if f.shape[-1] > 1:
            raise Undefined(f"outcomes: expected one binary label, got {f.shape[-1]}, which are 2^{f.shape[-1]} cases")
        p = self.mean(f)[:, 0]
        return [(1 - p, torch.zeros_like(f)), (p, torch.ones_like(f))]

    def mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(f), generator=generator)

    def check(self, f: Tensor, y: Tensor) -> None:
        check_same_shape(f, y, "logits")
        require(bool(((y >= 0) & (y <= 1)).all()), "targets", "values in [0, 1]", range_of(y))
