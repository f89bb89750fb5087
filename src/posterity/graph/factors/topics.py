"""Topics: each word of a document comes from one of K topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from posterity.errors import require
from posterity.families import Dirichlet, Family
from posterity.graph._factor import Beliefs, Evaluation, Factor, batch_shape


@dataclass(frozen=True)
class Topics(Factor):
    """Σ_dw n_dw log p(w | θ_d, β), with the topics of the words summed out: φ_dwk ∝ exp E[log θ_dk + log β_kw].

        value = Σ_dw n_dw log Σ_k exp E[log θ_dk + log β_kw]
        to θ_d: Σ_w n_dw φ_dwk,     to β_k: Σ_d n_dw φ_dwk

    Given φ it is a sum of a term for θ and a term for β; work grows with the words that occur, not the vocabulary.

    Args:
        proportions: Name of θ, a local `Dirichlet` (D, K).
        topics: Name of β, a `Dirichlet` with K members over V words.
        counts: n, documents by words, dense (D, V).
    """

    proportions: str
    topics: str
    counts: Tensor
    separable = True

    def __post_init__(self) -> None:
        require(self.counts.ndim == 2, "counts", "documents by words (D, V)", tuple(self.counts.shape))
        fine = bool((torch.isfinite(self.counts) & (self.counts >= 0)).all())
        require(fine, "counts", "finite numbers >= 0", "negative or NaN")

    @property
    def size(self) -> int:
        return len(self.counts)

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.proportions: Dirichlet, self.topics: Dirichlet}

    def check(self, q: Mapping[str, Family]) -> None:
        super().check(q)
        topics = (q[self.proportions].event_shapes[0][0],)
        require(
            batch_shape(q[self.topics]) == topics,
            f"plates of {self.topics!r}",
            str(topics),
            batch_shape(q[self.topics]),
        )
        words = q[self.topics].event_shapes[0][0]
        require(words == self.counts.shape[1], "counts", f"{words} words, as the topics have", self.counts.shape[1])

    def take(self, rows: Tensor) -> Self:
        return type(self)(self.proportions, self.topics, self.counts[rows])

    @cached_property
    def _occurring(self) -> tuple[Tensor, Tensor, Tensor]:
        """Documents, words and counts of all pairs that occur."""
        document, word = self.counts.nonzero(as_tuple=True)
        return document, word, self.counts[document, word].to(torch.float64)

    def evaluate(self, q: Beliefs) -> Evaluation:
        document, word, count = self._occurring
        (log_theta,), (log_beta,) = q[self.proportions].expectation, q[self.topics].expectation
        # Each side is shifted by its largest entry, so that nothing underflows that another topic could explain.
        highest = log_theta.amax(-1, keepdim=True), log_beta.amax(0, keepdim=True)
        theta, beta = (log_theta - highest[0]).exp(), (log_beta - highest[1]).exp().mT.contiguous()  # (D, K), (V, K)
        total = (theta[document] * beta[word]).sum(-1)
        shift = highest[0][document, 0] + highest[1][0, word]
        ratio = (count / total).unsqueeze(-1)

        def to_proportions() -> tuple[Tensor]:
            return (theta * torch.zeros_like(theta).index_add_(0, document, ratio * beta[word]),)

        def to_topics() -> tuple[Tensor]:
            return ((beta * torch.zeros_like(beta).index_add_(0, word, ratio * theta[document])).mT,)

        value = (count * (total.log() + shift)).sum()
        return Evaluation(value, {self.proportions: to_proportions, self.topics: to_topics})
