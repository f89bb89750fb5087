"""`sweep`: merge again under many weights, without training, and see what each task gains or loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from posterity.errors import require, require_whole
from posterity.progress import track

Merged = TypeVar("Merged")
Weights = Mapping[str, float]


@dataclass(frozen=True)
class Sweep:
    """What came of each choice of weights.

    Attributes:
        weights: The weights, by model.
        scores: The scores of the merged model under them, by task.
    """

    weights: Sequence[Weights]
    scores: Sequence[Mapping[str, float]]

    @property
    def tasks(self) -> list[str]:
        """The tasks that were scored."""
        return list(self.scores[0])

    def rows(self) -> list[dict[str, float]]:
        """One row for each choice, for a table: `weight of <model>` and the task's scores."""
        return [
            {f"weight of {name}": weight for name, weight in weights.items()} | dict(scores)
            for weights, scores in zip(self.weights, self.scores, strict=True)
        ]


def sweep(
    merged: Callable[[Weights], Merged],
    weights: Iterable[Weights],
    score: Callable[[Merged], Mapping[str, float]],
) -> Sweep:
    """Merge under each choice of weights and score every task.

    Args:
        merged: Makes a merged model (a posterior, a state dict, a folder) from weights.
        weights: The choices; `trade_offs` makes those between equals and one alone.
        score: Scores of a merged model by task.

    Examples:
        >>> import torch
        >>> from posterity.merging import merge_state_dicts
        >>> base = {"w": torch.zeros(1)}
        >>> tuned = {"a": {"w": torch.ones(1)}, "b": {"w": -torch.ones(1)}}
        >>> found = sweep(
        ...     lambda weights: merge_state_dicts(tuned, base, weights=weights),
        ...     trade_offs(["a", "b"], steps=3),
        ...     lambda state: {"distance to a": float((state["w"] - 1).abs())},
        ... )
        >>> found.rows()[0]
        {'weight of a': 0.0, 'weight of b': 1.0, 'distance to a': 2.0}
    """
    choices = list(weights)
    require(bool(choices), "weights", "at least one choice", "none")
    return Sweep(choices, [score(merged(choice)) for choice in track(choices, "merging under many weights")])


def trade_offs(names: Sequence[str], steps: int = 11, total: float = 1.0) -> list[dict[str, float]]:
    """Weights that sum to `total`: each model in turn goes from nothing to all of it, the others share the rest.

    Two models have one such line between them; a single model goes from nothing to all.

    Examples:
        >>> trade_offs(["a", "b"], steps=3)
        [{'a': 0.0, 'b': 1.0}, {'a': 0.5, 'b': 0.5}, {'a': 1.0, 'b': 0.0}]
    """
    require_whole("steps", steps, least=2)
    choices = []
    for name in names if len(names) > 2 else names[:1]:
        for i in range(steps):
            part = total * i / (steps - 1)
            rest = {other: (total - part) / (len(names) - 1) for other in names if other != name}
            choices.append({other: part if other == name else rest[other] for other in names})
    return choices
