"""`measure`: what a change of the training data does, by training twice instead of by an estimate.

Two copies of the model are trained on from the same weights, on the same batches with the same random numbers, one with
the change and one without. What differs in the end is the effect of the change. Other batches give an interval:

    mean_r (L_r(with) − L_r(without)) ± t_{R−1, 0.975} · s / √R

Models of which only one linear layer learns are solved twice by Newton's method: the effect is exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from posterity.adaptation.changes import Request
from posterity.adaptation.heads import solvable_alone
from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.resolve import resolve
from posterity.adaptation.solve.by_newton import retrained
from posterity.adaptation.solve.schedule import Schedule
from posterity.adaptation.solve.warm_start import Corrected, train_on
from posterity.batches import Batch, batches
from posterity.errors import expected, require, require_whole
from posterity.inputs import call
from posterity.memory import MemoryMap
from posterity.metrics.intervals import student_quantile
from posterity.posterior.fitted_model import FittedModel
from posterity.trees import evaluating


@dataclass(frozen=True)
class Measured:
    """The measured effect of a change of the training data on the mean loss of some examples.

    Args:
        examples: How many examples it was measured on.
        loss: Their mean loss without the change, after as much training.
        change: Change of the mean loss.
        low: Lower end of its 95 % interval.
        high: Upper end.
        accuracy: Accuracy without the change, for classes.
        accuracy_change: Change of the accuracy.
        accuracy_low: Lower end of its 95 % interval.
        accuracy_high: Upper end.
        repeats: Pairs of trainings; 0 for an exact solution.
    """

    examples: int
    loss: float
    change: float
    low: float
    high: float
    accuracy: float | None
    accuracy_change: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    repeats: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves no doubt about the direction."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        verdict = "" if self.clear else ", which may be nothing"
        what = f"mean loss of {self.examples} examples {self.loss:.4g} {self.change:+.2g}"
        interval = f"(95 %: {self.low:+.2g} to {self.high:+.2g})" if self.repeats else "(exact)"
        return f"{what} {interval}{verdict}"


def measure(
    memory_map: MemoryMap,
    *,
    remove: Iterable[int] = (),
    relabel: Mapping[int, Any] | None = None,
    on: Any = None,
    repeats: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """Measure what removing or relabelling training examples does, by training on from the old weights.

    `MemoryMap.what_if` estimates the same at once: the estimate suggests what to try; this measures it.

    Args:
        memory_map: A memory map with model and data.
        remove: Ids of examples to remove.
        relabel: New targets by id.
        on: Data to measure on; by default the changed examples themselves, under the targets they had.
        repeats: Pairs of trainings, at least two.
        seed: Of everything random.
        progress: A function of (trainings done, trainings in all).

    Examples:
        >>> import posterity as po
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(80, 2), (torch.randn(80) > 0).long()
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
        >>> m = po.memory_map(model, posterior, (x, y))
        >>> po.measure(m, remove=[3, 5], on=(x, y), repeats=2).repeats
        2
    """
    require_whole("repeats", repeats)
    require(repeats >= 2, "repeats", "at least 2, for an interval", repeats)
    trained = memory_map.trained
    if trained is None:
        raise expected("memory_map", "one with model and data", "a table alone")
    gone = list(remove)
    require(bool(gone or relabel), "measure", "ids to remove or relabel", "an empty selection")
    data = Batch.concatenate(list(trained.batches("measure")))
    problem = _problem(trained, data, gone, relabel)
    affected = problem.change.removed
    assert affected is not None
    test = affected if on is None else Batch.concatenate(list(batches(on, batch_size=1024)))
    if problem.heads is not None and solvable_alone(problem.old, problem.heads[0]):
        now = problem.all_data()
        assert now is not None
        pair = [_scores(retrained(problem, rows), trained, test) for rows in (data, now)]
        return replace(_summary([pair, pair], len(test)), repeats=0)
    changed, held = _tasks(problem, data)
    schedule = Schedule.measuring(problem, len(data))
    found = []
    for r in range(repeats):
        pair = []
        for k, task in enumerate((held, changed)):
            model = copy.deepcopy(problem.old)
            train_on(model, task, schedule, seed + 1000 * r)
            pair.append(_scores(model, trained, test))
            if progress is not None:
                progress(2 * r + k + 1, 2 * repeats)
        found.append(pair)
    return _summary(found, len(test))


def _problem(
    trained: FittedModel, data: Batch, gone: list[int], relabel: Mapping[int, Any] | None
) -> AdaptationProblem:
    request = Request(
        data=(data.inputs, data.targets, data.ids), remove=gone or None, relabel=dict(relabel) if relabel else None
    )
    return resolve(trained.model, trained.posterior, request, "warm_start", 0)


def _tasks(problem: AdaptationProblem, data: Batch) -> tuple[Corrected, Corrected]:
    """The objective with and without the change, over the same rows in the same order, the affected ones last."""
    affected = problem.change.removed
    assert affected is not None
    touched = torch.isin(data.ids, affected.ids)
    order = torch.cat(((~touched).nonzero()[:, 0], touched.nonzero()[:, 0]))
    rows = data.take(order)
    held = Corrected(rows, len(affected), problem.posterior.likelihood, problem.pulling, problem.scale)
    targets, weights = rows.targets.clone(), torch.ones(len(rows))
    new = problem.change.added
    place = {int(i): row for row, i in enumerate(rows.ids.tolist())}
    weights[[place[int(i)] for i in affected.ids]] = 0.0
    if new is not None:
        for i, y in zip(new.ids.tolist(), new.targets):
            targets[place[i]], weights[place[i]] = y, 1.0
    return replace(held, data=Batch(rows.inputs, targets, rows.ids), weights=weights), held


@torch.no_grad()
def _scores(model: nn.Module, trained: FittedModel, test: Batch) -> tuple[float, float | None]:
    losses, right = [], []
    law = trained.likelihood
    with evaluating(model):
        for rows in torch.arange(len(test)).split(1024):
            batch = test.take(rows).to(trained.device)
            f = call(model, batch.inputs)
            y = law.as_targets(f, batch.targets)
            losses.append(law.loss(f, y).double())
            correct = law.correct(f, y)
            if correct is not None:
                right.append(correct.double())
    return torch.cat(losses).mean().item(), torch.cat(right).mean().item() if right else None


def _summary(found: list[list[tuple[float, float | None]]], examples: int) -> Measured:
    loss = sum(without[0] for without, _ in found) / len(found)
    change = _interval([with_[0] - without[0] for without, with_ in found])
    pairs = [(without[1], with_[1]) for without, with_ in found if without[1] is not None and with_[1] is not None]
    if not pairs:
        return Measured(examples, loss, *change, None, None, None, None, len(found))
    accuracy = sum(a for a, _ in pairs) / len(pairs)
    return Measured(examples, loss, *change, accuracy, *_interval([b - a for a, b in pairs]), len(found))


def _interval(changes: list[float]) -> tuple[float, float, float]:
    """Mean of some changes, and the ends of its 95 % interval."""
    values = torch.tensor(changes, dtype=torch.float64)
    half = student_quantile(0.975, len(values) - 1) * values.std().item() / len(values) ** 0.5
    mean = values.mean().item()
    return mean, mean - half, mean + half
