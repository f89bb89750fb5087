"""What the report of a run shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posterity.app.from_run import from_run
from posterity.app.report import Contents, HeldOut
from posterity.app.source import Source
from posterity.cells import counted
from posterity.errors import PosterityError
from posterity.runs import RunFolder
from posterity.runs.effects import Effect, effects
from posterity.runs.reproducing import command


def contents(run: RunFolder) -> Contents:
    """The content of a run's report; without its data, or without a Gaussian posterior, there is no memory."""
    source: Source | None = None
    warning = ""
    try:
        source = from_run(run)
        warning = source.reliability
    except PosterityError as why:
        warning = str(why)
    target, rows, config = run.preprocessing.target, run.record.rows._asdict(), run.config
    file = Path(run.dataset.source.path).name
    used = sum(column.width > 0 for column in run.preprocessing.columns)
    return Contents(
        title=run.folder.resolve().name,
        lead=f"{target.name}, predicted from {file} after training on {rows['train']} rows.",
        facts={
            "target": f"{target.name} ({target.task})",
            "inputs": counted(used, "column") if used else "x".join(str(size) for size in run.preprocessing.shape),
            "model": config["model"],
            "method": config["method"],
            "rows to train and to test": f"{rows['train']} and {rows['test']}",
            "seed": config["seed"],
            "status": run.status,
        }
        | _tempered(run),
        notes=run.record.notes,
        beside=run.record.baseline,
        held_out=_held_out(run, source),
        memory=None if source is None else source.table,
        ranking="loo_nll" if source is None else source.ranking,
        preview=None if source is None else source.preview,
        class_names=run.class_names,
        warning=warning,
        effects=_effects(run),
        cost=_cost(run),
        reproduce=command(run),
    )


def _cost(run: RunFolder) -> dict[str, object]:
    """Steps and seconds of the training, and of the adaptation that followed."""
    cost: dict[str, object] = {"steps": run.record.steps, "seconds of training": round(run.record.seconds, 1)}
    if run.record.adaptation is None:
        return cost
    steps, seconds = run.record.adaptation["steps"], round(run.record.adaptation["seconds"], 1)
    return cost | {"steps of the adaptation": steps, "seconds of the adaptation": seconds}


def _tempered(run: RunFolder) -> dict[str, str]:
    """Of a posterior that is colder than Bayes' rule: its temperature, and what its width costs."""
    posterior, last = run.posterior, run.history[-1] if run.history else {}
    found = (
        {}
        if posterior.ess == posterior.n
        else {"temperature of the posterior": f"{posterior.temperature:.3g} (1 is Bayes' rule; lower is narrower)"}
    )
    if "price" in last:
        found["loss added by noise in the weights"] = f"{last['price']:.3g} nats per example"
        found["effective number of parameters"] = f"{last['effective_parameters']:.0f}"
    return found


def _effects(run: RunFolder) -> list[Effect]:
    """Effects of columns on predictions, where the data still exist."""
    try:
        return effects(run)
    except PosterityError:
        return []


def _held_out(run: RunFolder, source: Source | None) -> HeldOut | None:
    if not run.has("predictions"):
        return None
    table = run.predictions
    place = {int(i): row for row, i in enumerate(table["id"])}
    preview: Any = None
    if source is not None and source.test_preview is not None:
        show = source.test_preview
        preview = lambda i: show(place[i])  # noqa: E731 (a short question to an outside function)
    ids = table["id"].to_numpy()
    if run.class_names is None:
        columns = {name: table[name].to_numpy(copy=True) for name in ("mean", "std")}
        return HeldOut(ids, table["label"].to_numpy(copy=True), preview=preview, **columns)
    code = {name: k for k, name in enumerate(run.class_names)}
    targets = table["label"].map(code).to_numpy(copy=True)
    return HeldOut(
        ids, targets, probs=table[[f"p({name})" for name in run.class_names]].to_numpy(copy=True), preview=preview
    )
