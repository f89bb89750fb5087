"""What was chosen from a pool, and why, in words for the person who labels."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from posterity.exploration.question import PoolQuestion
from posterity.prediction import Prediction, predict

_WHY = {
    "entropy": "unsure by {:.2f} nats",
    "margin": "two answers {:.2f} close",
    "bald": "its label gives {:.2f} nats about the weights",
    "bald_linearised": "its label gives {:.2f} nats about the weights",
    "batch_bald": "its label adds {:.2f} nats to those before it",
    "batch_bald_linearised": "its label adds {:.2f} nats to those before it",
    "leave_one_out": "its label lowers the leave-one-out loss by {:.2g}",
    "diverse_margin": "close and different from those before it by {:.2f}",
    "k_centre": "{:.2g} away from the nearest labelled one",
    "random": "drawn at random",
}


@dataclass(frozen=True, eq=False, repr=False)
class Picks:
    """Examples to label next, the most wanted first.

    Args:
        criterion: By what they were chosen.
        ids: Their ids.
        scores: Their scores; for a batch criterion, what each adds to those before it.
        why: For each, what the model thinks it is and what a label is worth.
    """

    criterion: str
    ids: Tensor
    scores: Tensor
    why: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Picks({len(self)} by {self.criterion}: {self.ids[:5].tolist()}{'...' if len(self) > 5 else ''})"

    @property
    def table(self) -> pd.DataFrame:
        """A row for each: id, score, why."""
        return pd.DataFrame({"id": self.ids.numpy(), "score": self.scores.numpy(), "why": list(self.why)})


def reasons(question: PoolQuestion, criterion: str, positions: Tensor, scores: Tensor) -> tuple[str, ...]:
    """A sentence for each example that was chosen."""
    trained = question.trained
    inputs = question.examples(positions).inputs
    p = predict(trained.model, trained.posterior, inputs, question.samples, seed=question.seed)
    worth = [_WHY[criterion].format(score) for score in scores.tolist()]
    return tuple("; ".join((*_belief(p, row), text)) for row, text in enumerate(worth))


def _belief(p: Prediction, row: int) -> tuple[str, ...]:
    """What the model thinks of one example; nothing where it has many targets."""
    mean = p.mean[row]
    if mean.ndim != 1:
        return ()
    if p.log_probs is not None and mean.shape[0] > 1 and p.log_probs.shape == p.mean.shape:
        shares, labels = mean.topk(2)
        names = p.class_names or tuple(str(k) for k in range(len(mean)))
        first, second = (f"{names[k]} ({s:.0%})" for k, s in zip(labels.tolist(), shares.tolist(), strict=True))
        return (f"{first} or {second}",)
    if mean.shape[0] > 1:
        return ()
    if p.log_probs is not None:
        return (f"1 with probability {mean.item():.0%}",)
    return (f"{mean.item():.3g} ± {p.std[row].item():.2g}",)
