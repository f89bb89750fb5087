"""`adapt`: a trained model with other data, another prior, more classes or another architecture."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from posterity.adaptation.changes import Remove, Request
from posterity.adaptation.past import Past
from posterity.adaptation.problem import WARM, AdaptationProblem, Solved, one_example
from posterity.adaptation.report import Report, distance, objective, objective_gradient, row
from posterity.adaptation.represent import represent
from posterity.adaptation.resolve import resolve
from posterity.adaptation.solve.alternatives import alternatives
from posterity.adaptation.solve.dispatch import solve
from posterity.adaptation.solve.drift import Drift
from posterity.adaptation.solve.forgetting import checked, drift_of
from posterity.adaptation.solve.removed_classes import removed_classes
from posterity.adaptation.solve.schedule import BATCH
from posterity.adaptation.solve.structure import structure_after
from posterity.adaptation.solve.training import Settings
from posterity.batches import Batch
from posterity.errors import expected, require
from posterity.posterior import Diagonal, Memory, Posterior
from posterity.posterior.fitted_model import check_belongs
from posterity.startup import fitting_threads

METHODS = (WARM, "kprior", "ewc", "combined")
WORSE = 0.01  # share of the objective


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A model after a change, its posterior, and the report. The old ones are as they were."""

    model: nn.Module
    posterior: Posterior
    report: Report


def adapt(
    model: nn.Module,
    posterior: Posterior,
    *,
    data: Any = None,
    add: Any = None,
    remove: Remove | None = None,
    relabel: Mapping[int, Any] | None = None,
    prior_precision: float | Diagonal | None = None,
    classes: int | Sequence[str] | None = None,
    into: nn.Module | None = None,
    memory: Memory | int | None = None,
    forget: float | str = 0.0,
    method: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    clip: float | None = None,
    seed: int = 0,
    compare: bool = False,
) -> Adaptation:
    """Change what a model was trained on, or how, without training it from the beginning.

    The method depends on what is available. Generalised linear models and last layers are solved by Newton's method:
    with all old data the result is that of retraining, unless the old training centred the prior at its weights.
    Networks whose old data are given are trained on the corrected data; the length follows the size of the change, and
    perceptrons start from mostly new weights where it is large. Without the old data a K-prior represents them: the
    old predictions on a memory, and a quadratic for everything that is not in it. `report.why` gives the reason.

    Args:
        model: The trained model; it is not changed.
        posterior: Its Gaussian posterior (`po.fit(method="ivon")`, `po.laplace`); it is not changed.
        data: The old training data, with ids or in a fixed order, where they are still there.
        add: New data.
        remove: Ids of examples to forget, or a function from a `Batch` to a mask: a class is
            `lambda batch: batch.targets == 3`. Without `data`, a function is applied to the memory, and each picked
            example is removed with all the examples that it represents.
        relabel: New targets by id.
        prior_precision: Another precision of the prior, or another prior.
        classes: How many classes there are afterwards, or their names; new ones get outputs of their own.
        into: Another model to carry the knowledge into; a copy of it is trained.
        memory: What to remember: a Memory, or a number of examples to choose from `data`. By default the memory that
            the posterior carries; otherwise, of `data`, everything (linear models) or one example in ten (networks).
        forget: How much of the past to forget, γ in [0, 1]: the contribution of the old data is multiplied by 1 − γ.
            0 keeps everything. 1 leaves the prior of a linear model and nothing of a network, which is trained on the
            new data from new weights. "auto" takes the γ under which the new data are most likely.
        method: For networks: "warm_start" (the default with `data`), "kprior" (the default without), "ewc" without
            memory, "combined" also with the memory's true labels.
        epochs: For networks: passes over all data. By default a share of the old training's that follows the size of
            the change; where that is unknown, or where training had a prior, 5 passes or 250 steps, whichever
            is more, for changes of 8 % of the data and beyond, fewer for smaller ones, twice as many for new classes.
            With K-priors: passes over the new data, or over the memory where nothing is added; by default 20, or as
            many more as it takes to make 500 steps.
        batch_size: For networks: examples a step; by default 64, with K-priors 128 of new data and of memory.
        lr: For networks: learning rate of Adam; by default that of the old training, or 3e-3 where it is unknown, less
            for small changes; with K-priors 1e-3, or that of `po.fit` where another model is trained.
        clip: For networks: largest norm of the gradient of the mean loss.
        seed: Of everything random.
        compare: Also retrain from new weights and, for networks, run a plain warm start (AdamW at its defaults) for the
            same time; needs `data`.

    Returns:
        The adapted model, its posterior (in the structure it had, with its memory for the next change), and a report.

    Examples:
        >>> import posterity as po
        >>> x = torch.linspace(-1, 1, 40).unsqueeze(1).double()
        >>> line = nn.Linear(1, 1, bias=False).double()
        >>> xx = x.square().sum().item()
        >>> _ = nn.init.constant_(line.weight, 2 * xx / (xx + 1))  # the optimum, with the precision 1 of the prior
        >>> old = po.laplace(line, (x, 2 * x), structure="full", prior_precision=1.0, noise_precision=1.0)
        >>> result = adapt(line, old, data=(x, 2 * x), prior_precision=0.1)
        >>> result.report.exact, abs(result.model.weight.item() - 2 * xx / (xx + 0.1)) < 1e-12
        (True, True)

    References:
        Khan and Swaroop, "Knowledge-adaptation priors", 2021.
    """
    started, used = time.perf_counter(), time.process_time()
    settings = Settings(epochs, batch_size, lr, clip, seed)
    request = Request(data, add, remove, relabel, prior_precision, classes, into, memory)
    if method is not None and method not in METHODS:
        raise expected("method", f"one of {list(METHODS)}", method)
    require(not compare or data is not None, "compare", "data beside it", "none")
    check_belongs(model, posterior)
    rate = checked(forget)
    problem = resolve(model, posterior, request, method, seed, rate != 0)
    drift = None if rate == 0 else drift_of(problem, rate)
    if drift is not None:
        nothing = drift.forget == 0  # found by "auto": then the old data count as they are
        problem = resolve(model, posterior, request, method, seed) if nothing else problem.forgetting(drift.forget)
    past = represent(problem)
    example = one_example(problem.whole, problem.memory, problem.change.added)
    with fitting_threads(problem.new, settings.batch_size or BATCH, example):
        solved = solve(problem, past, settings)
    structure, why = structure_after(problem, solved.past, solved.precision)
    adapted = Posterior.of(
        solved.model,
        structure,
        prior=problem.prior_after(structure.mean),
        n=problem.n,
        ess=problem.n / problem.scale,
        likelihood=posterior.likelihood,
        class_names=problem.change.class_names,
        memory=solved.memory,
        predictive="linearised",  # its precision is a curvature at the new optimum
        training=solved.training or posterior.training,
    )
    seconds, used = time.perf_counter() - started, time.process_time() - used
    others, notes = alternatives(problem, used, seed) if compare else ({}, [])
    notes += [note for note in (why, _group(problem), _centre(problem), drift and str(drift)) if note]
    report = _report(problem, past, solved, notes, seconds, others, drift)
    return Adaptation(solved.model, adapted, report)


def _report(
    problem: AdaptationProblem,
    past: Past,
    solved: Solved,
    notes: list[str],
    seconds: float,
    others: Mapping[str, nn.Module],
    drift: Drift | None,
) -> Report:
    """Compare the result with no adaptation and, where all data are given, with retraining."""
    change, posterior, whole = problem.change, problem.posterior, problem.all_data()
    models = {"no adaptation": problem.before(), "adapted": solved.model, **others}
    rows = {
        name: row(m, posterior.likelihood, change.added, change.removed, problem.memory) for name, m in models.items()
    }
    found = None
    # The output of a class that is no more is far below what a prior expects.
    silenced = problem.heads is None and len(removed_classes(problem, past)) > 0
    if whole is not None and problem.keep == 1:  # otherwise the objective is not that of retraining
        for name, model in models.items():
            if name == "no adaptation" and problem.other_model():
                continue  # the objective is that of the new model
            given = (model, whole, posterior.likelihood, problem.pulling, problem.scale)
            if not silenced:
                rows[name]["objective"] = objective(*given)
            if problem.way != WARM:  # where its own objective is that of retraining, a gradient says nothing new
                rows[name]["gradient"] = objective_gradient(*given).norm().item()
        found = rows["adapted"].get("gradient")
    if problem.heads is not None and "retrained" in models:
        for name, model in models.items():
            rows[name]["distance"] = distance(model, models["retrained"], problem.prior.names)
    smallest = min(p.min().item() for p in problem.prior.precision.values() if p.numel()) * problem.scale
    memory = problem.memory
    return Report(
        method=problem.way,
        why=problem.why + _start(problem, solved),
        exact=solved.exact,
        steps=solved.steps,
        seconds=seconds,
        passes=solved.looked_at / problem.n,
        residual=solved.residual,
        gradient=found,
        bound=None if found is None or solved.residual is None or smallest <= 0 else found / smallest,
        memory=(0 if memory is None else len(memory), 0 if solved.memory is None else len(solved.memory)),
        represented=0.0 if memory is None else memory.weights.sum().item(),
        added=_ids(change.added),
        removed=_ids(change.removed),
        table=pd.DataFrame.from_dict(rows, orient="index"),
        drift=drift,
        notes=(*notes, *(() if problem.pulling is not problem.prior else _worse(rows, solved.exact))),
    )


def _start(problem: AdaptationProblem, solved: Solved) -> str:
    """What the weights of a warm start were."""
    if problem.way != WARM:
        return ""
    if solved.training is None:
        return ", from the old weights"
    return f", from {'mostly' if problem.posterior.likelihood.is_classification else 'partly'} new weights"


def _worse(rows: Mapping[str, Mapping[str, float]], exact: bool) -> Iterator[str]:
    """Where the objective that retraining lowers has become higher, and not just by rounding or a few steps."""
    before, after = (rows[name].get("objective", math.nan) for name in ("no adaptation", "adapted"))
    if after > before + WORSE * abs(before):
        # What is exact from an optimum can only fail where training had stopped short of one.
        cure = "train the old one to its optimum" if exact else "remember more examples, take smaller steps"
        yield (
            f"the objective of retraining rose from {before:.4g} to {after:.4g}: the model before may be nearer to its "
            f"minimum than this one; {cure}, or retrain"
        )


def _centre(problem: AdaptationProblem) -> str | None:
    """Why a linear model that no prior has pulled does not come out as retraining would leave it."""
    if problem.heads is None or not problem.widths_alone():
        return None
    return (
        "the old training centred its prior at its own weights: the result minimises the loss and a prior around the "
        "old weights, where retraining would have one around new weights; `prior_precision` sets another prior"
    )


def _group(problem: AdaptationProblem) -> str | None:
    """What was done with a group that only the memory contains."""
    change, memory, n = problem.change, problem.memory, problem.posterior.n
    if change.others is None or memory is None:
        return None
    stands = memory.weights.sum().item()
    gone = f"{change.gone} of {n} examples were removed: the remembered ones of the group and all that they represent"
    return gone if stands > n - 0.5 else f"{gone}; the memory represents {stands:.0f} examples, the others stay"


def _ids(batch: Batch | None) -> Tensor:
    return torch.empty(0, dtype=torch.int64) if batch is None else batch.ids
