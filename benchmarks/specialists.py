"""Specialists of one base, merged by every method: what the studies of merging share."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import report
import torch
from torch import Tensor, nn

import posterity as po
from posterity.merging import merge_state_dicts
from posterity.posterior import Posterior
from posterity.trees import Tree, trainable

WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5)
BEST = "best on validation"
Data = tuple[Tensor, Tensor]
Scores = Mapping[str, float]


@dataclass
class Family:
    """A base and its specialists, trained by one optimizer, with their training data.

    Attributes:
        base: The base; `posterior` and `data` are what it left behind and learnt from.
        models: The specialists, by name, with `posteriors` and `tasks` likewise.
    """

    base: nn.Module
    posterior: Posterior
    data: Data
    models: Mapping[str, nn.Module]
    posteriors: Mapping[str, Posterior]
    tasks: Mapping[str, Data]


@dataclass(frozen=True)
class Way:
    """One way of merging: the merged parameters as a function of the weight that all specialists get."""

    name: str
    merged: Callable[[float], Tree]
    weighted: bool
    seconds: float = 0.0  # of the pass over the data that it needs


def ways(
    family: Family,
    fisher: Callable[[nn.Module, Data], Tree],
    grams: Callable[[nn.Module, Data], Tree],
    own_hessian: bool,
) -> Iterator[Way]:
    """Every method, from the same specialists.

    Args:
        family: Base and specialists.
        fisher: The diagonal Fisher of a model, summed over data.
        grams: The Gram matrices of its linear layers' inputs.
        own_hessian: Whether the posteriors hold a learnt precision (those of IVON do).
    """
    base = dict(trainable(family.base))
    models = {name: dict(trainable(model)) for name, model in family.models.items()}

    def way(method: str, seconds: float = 0.0, **settings: Any) -> Way:
        averages = po.merging.METHODS[method].averages

        def merged(weight: float) -> Tree:
            weights = dict.fromkeys(models, weight)
            return merge_state_dicts(models, None if averages else base, method=method, weights=weights, **settings)

        return Way(method, merged, not averages, seconds)

    yield way("linear")
    yield way("task_arithmetic")
    yield way("ties", density=0.2)
    yield way("dare", density=0.5)
    if len(models) == 2:
        yield way("slerp")
    begin = time.perf_counter()
    inputs = {name: grams(family.models[name], data) for name, data in family.tasks.items()}
    yield way("regmean", time.perf_counter() - begin, curvatures=inputs)
    begin = time.perf_counter()
    curvatures = {name: fisher(family.models[name], data) for name, data in family.tasks.items()}
    yield way("fisher", time.perf_counter() - begin, curvatures=curvatures)
    precision = {name: F + 1e-12 for name, F in fisher(family.base, family.data).items()}
    seconds = time.perf_counter() - begin
    yield way("gradient_matching", seconds, curvatures=curvatures, base_precision=precision)
    if own_hessian:

        def matched(weight: float) -> Tree:
            return po.merge(family.posteriors, family.posterior, weights=dict.fromkeys(models, weight)).mean

        yield Way("gradient_matching, own Hessian", matched, True)


def measure(found: Iterator[Way], model: nn.Module, score: Callable[[nn.Module, str], Scores]) -> Iterator[report.Line]:
    """Score every way: with weights 1, and with the common weight that validation data prefer.

    Args:
        found: The ways.
        model: A model to put merged parameters into.
        score: The scores of a model on each task's "validation" or "test" data.
    """
    for way in found:
        preferred = {}
        for weight in WEIGHTS if way.weighted else (1.0,):
            model.load_state_dict(way.merged(weight), strict=False)
            preferred[weight] = statistics.fmean(score(model, "validation").values())
        best = max(preferred, key=preferred.__getitem__)
        for rule, weight in (("1", 1.0), (BEST, best)) if way.weighted else (("", 1.0),):
            model.load_state_dict(way.merged(weight), strict=False)
            line = {"method": way.name, "weights": rule, "weight": weight, "pass": way.seconds}
            yield line | {"scores": score(model, "test")}


def interval(values: Sequence[float]) -> str:
    """Mean and its 95 % interval over seeds (Student's t)."""
    from scipy import stats

    if len(values) < 2:
        return f"{values[0]:.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2f} ± {half:.2f}"


def table(lines: Sequence[report.Line]) -> str:
    """Scores of each method on each task, their average, and its paired difference to task arithmetic."""
    tasks = list(lines[0]["scores"])

    def average(line: report.Line) -> float:
        return statistics.fmean(line["scores"].values())

    plain = {(line["seed"], line["weights"]): average(line) for line in lines if line["method"] == "task_arithmetic"}
    rows = []
    for method, rule in dict.fromkeys((line["method"], line.get("weights", "")) for line in lines):
        mine = [line for line in lines if (line["method"], line.get("weights", "")) == (method, rule)]
        each = [f"{statistics.fmean(line['scores'][task] for line in mine):.1f}" for task in tasks]
        gains = [average(line) - plain[line["seed"], rule or BEST] for line in mine]
        seconds = statistics.fmean(line.get("pass", 0.0) for line in mine)
        rows.append(
            [method, rule, *each, interval([average(line) for line in mine]), interval(gains), f"{seconds:.1f}"]
        )
    return report.table(["method", "weights", *tasks, "average", "Δ", "pass"], rows)


EXPLANATION = (
    "\nAccuracies in %; averages with 95 % intervals over seeds. Δ: difference of the averages to task arithmetic "
    f"(with the same weights; with those that are {BEST} for methods without a common weight), paired by seed. "
    "pass: seconds of the pass over the training data that the method needs.\n"
)


def publish(name: str, title: str, lines: Sequence[report.Line], out: str | None, **facts: object) -> None:
    """One table for each optimizer."""
    text = report.header(title, lines, seeds=sorted({line["seed"] for line in lines}), **facts) + EXPLANATION
    for optimizer in dict.fromkeys(line["optimizer"] for line in lines):
        mine = [line for line in lines if line["optimizer"] == optimizer]
        text += f"\n### Specialists by {'IVON' if optimizer == 'ivon' else 'AdamW'}\n\n" + table(mine)
    report.publish(name, text, out)


def copy_of(model: nn.Module, like: Callable[[], nn.Module]) -> nn.Module:
    """A model of its own with the same weights, on the same device."""
    twin = like().to(next(model.parameters()).device)
    twin.load_state_dict(model.state_dict())
    return twin


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """In percent."""
    model.eval()
    right = [(model(x).argmax(-1) == y).sum() for x, y in zip(data[0].split(512), data[1].split(512), strict=True)]
    return 100 * torch.stack(right).sum().item() / len(data[1])
