"""Specialists of one base, merged by every method: what the studies of merging share."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import PosterityError
from posterity.merging import merge_state_dicts
from posterity.posterior import Posterior
from posterity.trees import Tree, trainable

WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5)
BEST = "best on validation"
OWN = "gradient_matching, own Hessian"
Data = tuple[Tensor, Tensor]
Scores = Mapping[str, float]
Settings = Mapping[str, float]
OPTIMIZERS = {"adamw": "AdamW", "ivon": "IVON"}
TUNING = 100  # the seed with which settings are tried


@dataclass
class Family:
    """A base and its specialists, trained by one optimizer, with their training data.

    Attributes:
        base: The base; `posterior` and `data` are its posterior and what it learnt from.
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

        yield Way(OWN, matched, True)


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


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a study of specialists."""
    arguments = report.parser(description)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--tune", action="store_true", help="try settings on validation data, and stop")
    arguments.add_argument("--tried", nargs="+", help="raw files of --tune: the best settings are taken")
    return arguments


def tune(
    tries: Mapping[str, Sequence[Settings]], optimizers: Sequence[str], score: Callable[[str, Settings], Scores]
) -> Iterator[report.Line]:
    """What each of an optimizer's settings gives specialists on their own validation data."""
    for optimizer in optimizers:
        for settings in tries[optimizer]:
            begin = time.perf_counter()
            try:
                found = score(optimizer, settings)
            except PosterityError:  # it diverged
                found = {"none": 0.0}
            average, seconds = statistics.fmean(found.values()), time.perf_counter() - begin
            print(f"{optimizer}, {spelt(settings)}: {average:.2f} % on validation data ({seconds:.0f} s)", flush=True)
            yield {"optimizer": optimizer, "settings": settings, "scores": found, "average": average}


def chosen(paths: Sequence[str]) -> dict[str, Settings]:
    """For each optimizer the settings that did best."""
    lines = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    best = {line["optimizer"]: line for line in sorted(lines, key=lambda line: float(line["average"]))}
    return {optimizer: line["settings"] for optimizer, line in best.items()}


def sizes(tasks: Mapping[str, Any]) -> dict[str, list[int]]:
    """How many examples of each task are there to train, to validate and to test."""
    return {name: [len(part[1]) for part in (t.train, t.validation, t.test)] for name, t in tasks.items()}


def spelt(settings: Settings) -> str:
    return " ".join(f"{name} {value:g}" for name, value in settings.items())


def done(raw: str | None) -> set[tuple[str, int]]:
    """The optimizers and seeds that an earlier run has written to a raw file; a study is written in one go."""
    if not raw or not Path(raw).exists():
        return set()
    return {(line["optimizer"], line["seed"]) for line in map(json.loads, Path(raw).read_text().splitlines())}


def studies(
    options: argparse.Namespace, study: Callable[[str, Settings, int], Iterator[report.Line]]
) -> Iterator[report.Line]:
    """One study for each seed and optimizer that the raw file does not hold yet."""
    if not options.tried:
        raise SystemExit("--tried: expected the raw files that --tune wrote, got none")
    settings, finished = chosen(options.tried), done(options.raw)
    for seed in options.seeds:
        for optimizer in options.optimizers:
            if (optimizer, seed) not in finished:
                yield from list(study(optimizer, settings[optimizer], seed))


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
    "pass: seconds of the pass over the training data that the method needs. Settings: those that gave specialists the "
    f"highest accuracy on their own validation data with seed {TUNING}.\n"
)


def publish(
    name: str, title: str, lines: Sequence[report.Line], out: str | None, tries: Mapping[str, Sequence[Settings]]
) -> None:
    """One table for each optimizer, and what is between them."""
    used = {line["optimizer"]: line["settings"] for line in lines}
    best = [f"{OPTIMIZERS[key]} {spelt(each)} (the best of {len(tries[key])})" for key, each in used.items()]
    counts = [f"{task} {' / '.join(map(str, each))}" for task, each in lines[0]["sizes"].items()]
    facts = {"epochs": lines[0]["epochs"], "settings": ", ".join(best)}
    facts["examples_to_train_validate_and_test"] = ", ".join(counts)
    text = report.header(title, lines, seeds=sorted({line["seed"] for line in lines}), **facts) + EXPLANATION
    for optimizer in dict.fromkeys(line["optimizer"] for line in lines):
        mine = [line for line in lines if line["optimizer"] == optimizer]
        text += f"\n### Specialists by {OPTIMIZERS[optimizer]}\n\n" + table(mine)
    report.publish(name, text + between(lines), out)


def between(lines: Sequence[report.Line]) -> str:
    """Paired differences that cross the tables: IVON's Hessian and a pass over the data, IVON and AdamW."""
    found = {
        (line["optimizer"], line["method"], line.get("weights", ""), line["seed"]): statistics.fmean(
            line["scores"].values()
        )
        for line in lines
    }
    rows = []
    for optimizer, method, rule in dict.fromkeys(key[:3] for key in found):
        other = (optimizer, "gradient_matching", rule) if method == OWN else ("adamw", method, rule)
        mine = {key[3]: value for key, value in found.items() if key[:3] == (optimizer, method, rule)}
        gains = [value - found[*other, seed] for seed, value in mine.items() if (*other, seed) in found]
        if optimizer == "ivon" and gains:
            against = "the pass over the data" if method == OWN else "AdamW"
            rows.append([method, rule, against, interval(gains)])
    if not rows:
        return ""
    title = "\n### Specialists by IVON against others, paired by seed\n\n"
    return title + report.table(["method", "weights", "against", "difference of averages"], rows)


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
