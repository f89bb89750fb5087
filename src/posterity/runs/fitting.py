"""From a plan to a run: train, and write everything down."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from posterity.errors import InvalidInput
from posterity.files import make_folder, read_sealed, write_sealed
from posterity.learning import Run
from posterity.learning.checkpoints import holds_checkpoint
from posterity.runs._folder import RunFolder
from posterity.runs.baseline import baseline
from posterity.runs.config import USUAL
from posterity.runs.folds import keep
from posterity.runs.folds import scores as fold_scores
from posterity.runs.heads import train_head
from posterity.runs.intervals import widths
from posterity.runs.networks import HEAD
from posterity.runs.planning import WORK, Plan, build, learn
from posterity.runs.predicting import evaluated
from posterity.runs.probing import length
from posterity.runs.record import RunRecord
from posterity.runs.snapshots import Snapshots
from posterity.runs.store import LIST, TRAINING, locked
from posterity.runs.targets import Classes
from posterity.startup import fitting_threads

CHECKPOINT = "checkpoint"  # in the folder of work
LOCK = ".training.lock"  # held while a training goes on


def train(plan: Plan, *, anew: bool = False, progress: bool | None = None) -> RunFolder:
    """Train as planned, from the start or from the last checkpoint, and write the run.

    After Ctrl-C the run is written as far as it came, and can be resumed.

    Args:
        plan: What to train.
        anew: Start from the beginning, and discard an unfinished training in the folder.
        progress: Whether to show a bar; None where there is a terminal.
    """
    folder, work = plan.folder, plan.folder / WORK
    make_folder(folder)
    if plan.config.epochs is None and plan.config.model != HEAD:
        plan = replace(plan, config=replace(plan.config, epochs=length(plan, plan.folds)))
    with locked(folder, LOCK), fitting_threads(build(plan), plan.config.batch_size or USUAL, plan.train.inputs):
        _refuse_foreign(folder)
        if anew:
            discard(folder)
        write_sealed(folder / TRAINING, plan.content())
        if plan.folds is not None:
            keep(plan.folds, work)
        snapshots = Snapshots(work / "maps", plan.train, plan.config.epochs or 1) if plan.config.track else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                found = _fit(plan, work, [] if snapshots is None else [snapshots], progress)
            except InvalidInput:
                if not _begun(work):  # refused before its first checkpoint: there is nothing to go on with
                    discard(folder)
                raise
        plan.notes.extend(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))
        run = _write(plan, found, snapshots)
        if not found.interrupted:
            discard(folder)
    return run


def refuse_occupied(folder: Path, overwrite: bool) -> None:
    """Raise where a new training would get in the way of a run, or of a training that can go on."""
    # The lock is held by a training that goes on, which nobody may take the ground from under.
    with locked(folder, LOCK) if (folder / LOCK).exists() else nullcontext():
        _refuse_foreign(folder)
        if (folder / TRAINING).exists() and not overwrite:
            raise InvalidInput(
                f"{folder}: expected no unfinished training, got one; go on with --resume, or --overwrite it"
            )
    if (folder / LIST).exists() and not overwrite:
        raise InvalidInput(f"{folder}: expected a folder without a run, got one; choose another --out, or --overwrite")


def give_up(folder: Path) -> None:
    """Forget a training that another run has replaced; one that goes on meanwhile is left alone, with an error."""
    if (folder / TRAINING).exists():
        with locked(folder, LOCK):
            discard(folder)


def discard(folder: Path) -> None:
    """Forget a training under way, whose lock this process holds."""
    if (folder / TRAINING).exists():
        shutil.rmtree(folder / WORK, ignore_errors=True)
        (folder / TRAINING).unlink()  # last: it says whose the folder was


def _refuse_foreign(folder: Path) -> None:
    """Raise where a training would write into, and in the end remove, files of others."""
    if (folder / TRAINING).exists():
        read_sealed(folder / TRAINING)
    elif (folder / WORK).exists():
        raise InvalidInput(
            f"{folder / WORK}: expected nothing there, where training works, got files; choose another --out"
        )


def _fit(plan: Plan, work: Path, callbacks: list[Any], progress: bool | None) -> Run:
    config, target = plan.config, plan.preprocessing.target
    if isinstance(target, Classes) and config.model == HEAD:
        return train_head(build(plan), plan.train, target, **config.options)
    return learn(
        plan,
        plan.train,
        validation=plan.test,
        callbacks=callbacks,
        checkpoint=work / CHECKPOINT,
        resume=_begun(work),
        progress=progress,
    )


def _begun(work: Path) -> bool:
    """Whether a training got as far as its first checkpoint, that of an ensemble's first member included."""
    return any(holds_checkpoint(part) for part in (work / CHECKPOINT, work / CHECKPOINT / "member-1"))


def _write(plan: Plan, found: Run, snapshots: Snapshots | None) -> RunFolder:
    model, posterior = found.model, found.posterior
    config, target = plan.config, plan.preprocessing.target
    about: dict[str, Any] = {"method": config.prediction, "seed": config.seed}
    found_widths = widths(model, posterior, plan.train, target, plan.folds, **about)
    tables, figures = evaluated(model, posterior, vars(config), plan.preprocessing, plan.test, found_widths)
    if snapshots is not None:
        tables["memory-history"] = snapshots.table()
    if plan.folds is not None:
        tables["folds"] = fold_scores(plan.folds, plan.train, target)
    record = RunRecord(
        **plan.content(),
        status="interrupted" if found.interrupted else "finished",
        rows=plan.rows,
        metrics=figures,
        steps=found.steps,
        seconds=sum(row.get("seconds", 0.0) for row in found.history),
        baseline=baseline(plan.train, plan.test, target),
        notes=plan.notes,
        widths=found_widths,
    )
    history = [dict(row) for row in found.history]
    return RunFolder.create(
        plan.folder, model=model, posterior=posterior, record=record, history=history, tables=tables, overwrite=True
    )
