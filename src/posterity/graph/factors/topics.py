"""Topics: each word of a document comes from one of K topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from posterity.batches import one_tensor
from posterity.errors import require
from posterity.families import Dirichlet, Family
from posterity.graph._factor import Belief, Beliefs, Evaluation, Factor, batch_shape

_BLOCK = 2**12  # words of documents that are worked on together: their topics fit into a processor's cache
_KEPT = 2**25  # numbers β of the words that are kept while topics stand still; beyond, they are gathered again


class WordBlock(NamedTuple):
    """Documents of about the same length, padded to the longest with words that do not occur.

    Attributes:
        rows: Their numbers (n,).
        words: The words of each (n, L).
        counts: How often each occurs (n, L), zero for padding.
    """

    rows: Tensor
    words: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Topics(Factor):
    """Σ_dw n_dw log p(w | θ_d, β), with the topics of the words summed out: φ_dwk ∝ exp E[log θ_dk + log β_kw].

        value = Σ_dw n_dw log Σ_k exp E[log θ_dk + log β_kw]
        to θ_d: Σ_w n_dw φ_dwk,     to β_k: Σ_d n_dw φ_dwk

    Given φ it is a sum of a term for θ and a term for β; work grows with the words that occur, not the vocabulary.

    Args:
        proportions: Name of θ, a local `Dirichlet` (D, K).
        topics: Name of β, a `Dirichlet` with K members over V words.
        counts: n, documents by words (D, V), dense or sparse.
    """

    proportions: str
    topics: str
    counts: Tensor
    separable = True

    def __post_init__(self) -> None:
        counts = one_tensor(self.counts)
        counts = counts if counts.layout == torch.strided else counts.to_sparse_coo().coalesce()
        object.__setattr__(self, "counts", counts)
        require(counts.ndim == 2, "counts", "documents by words (D, V)", tuple(counts.shape))
        values = counts.values() if counts.is_sparse else counts
        fine = bool((torch.isfinite(values) & (values >= 0)).all())
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
        counts = self.counts.index_select(0, rows) if self.counts.is_sparse else self.counts[rows]
        return type(self)(self.proportions, self.topics, counts)

    @cached_property
    def _blocks(self) -> list[WordBlock]:
        """The documents, those of similar length together."""
        sparse = self.counts.to_sparse_coo().coalesce()
        document, word = sparse.indices()
        lengths = torch.bincount(document, minlength=len(self.counts))
        starts = lengths.cumsum(0) - lengths
        order = lengths.argsort()
        blocks, begin = [], int((lengths == 0).sum())  # empty documents say nothing
        while begin < len(order):
            end = begin + max(1, _BLOCK // int(lengths[order[begin]]))
            rows = order[begin:end]
            steps = torch.arange(int(lengths[rows].max()), device=rows.device)
            there = steps < lengths[rows].unsqueeze(-1)
            places = torch.where(there, starts[rows].unsqueeze(-1) + steps, 0)
            counts = torch.where(there, sparse.values()[places].to(torch.float64), 0.0)
            blocks.append(WordBlock(rows, torch.where(there, word[places], 0), counts))
            begin = end
        return blocks

    @cached_property
    def _gathered(self) -> dict[str, tuple[Belief, Tensor, Tensor, list[Tensor | None]]]:
        """What was last computed from the topics: the belief, its shift and β (V, K), and β of each block's words."""
        return {}

    def _topics(self, belief: Belief) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        known = self._gathered.get(self.topics)
        if known is None or known[0] is not belief:
            log_beta = belief.expectation[0].to(torch.float64)
            # Each side is shifted by its largest entry, so that nothing underflows that another topic could explain.
            highest = log_beta.amax(0)
            beta = (log_beta - highest).exp().mT.contiguous()
            kept = sum(block.words.numel() for block in self._blocks) * beta.shape[1] <= _KEPT
            each = [beta[block.words] if kept else None for block in self._blocks]
            known = self._gathered[self.topics] = belief, highest, beta, each
        return known[1:]

    def evaluate(self, q: Beliefs) -> Evaluation:
        log_theta = q[self.proportions].expectation[0].to(torch.float64)
        highest, beta, gathered = self._topics(q[self.topics])
        top = log_theta.amax(-1, keepdim=True)
        theta = (log_theta - top).exp()

        def blocks() -> Iterator[tuple[WordBlock, Tensor, Tensor, Tensor]]:
            """Each block with its θ (n, K), β of its words (n, L, K) and Σ_k θβ (n, L)."""
            for block, known in zip(self._blocks, gathered, strict=True):
                own, of_words = theta[block.rows], beta[block.words] if known is None else known
                yield block, own, of_words, (of_words @ own.unsqueeze(-1)).squeeze(-1)

        def value() -> Tensor:
            each = [
                (block.counts * (total.log() + highest[block.words] + top[block.rows])).sum()
                for block, _, _, total in blocks()
            ]
            return torch.stack(each).sum() if each else theta.new_zeros(())

        def to_proportions() -> tuple[Tensor]:
            found = torch.zeros_like(theta)
            for block, own, of_words, total in blocks():
                found[block.rows] = own * ((block.counts / total).unsqueeze(-2) @ of_words).squeeze(-2)
            return (found,)

        def to_topics() -> tuple[Tensor]:
            sums = torch.zeros_like(beta)
            for block, own, _, total in blocks():
                parts = (block.counts / total).unsqueeze(-1) * own.unsqueeze(-2)
                sums.index_add_(0, block.words.flatten(), parts.flatten(0, 1))
            return ((beta * sums).mT,)

        return Evaluation(value, {self.proportions: to_proportions, self.topics: to_topics})
