"""From a file to a run: read, preprocess, probe, train, and write everything down."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from posterity.errors import InvalidInput, RefusedFile
from posterity.files import make_folder, read_sealed, write_sealed
from posterity.learning import Run, fit
from posterity.learning.checkpoints import holds_checkpoint
from posterity.learning.folds import FOLDS, OutOfFold
from posterity.learning.learners import METHODS
from posterity.learning.learners.variational import usual_budget
from posterity.learning.length import best_epochs, stretch
from posterity.optim import suggest
from posterity.runs._folder import RunFolder
from posterity.runs.baseline import baseline
from posterity.runs.config import USUAL, Config, decided, folds_follow
from posterity.runs.data import Data
from posterity.runs.folds import cross_validated, keep, kept
from posterity.runs.folds import scores as fold_scores
from posterity.runs.heads import choose_head, train_head
from posterity.runs.intervals import shrunk, widths, with_noise
from posterity.runs.networks import HEAD, network
from posterity.runs.predicting import evaluated
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.record import RowCounts, RunRecord
from posterity.runs.snapshots import Snapshots
from posterity.runs.store import LIST, TRAINING, locked
from posterity.runs.suspicions import suspicions
from posterity.runs.table_settings import LONG, LONGEST_FOLD, STRETCH, bounded
from posterity.runs.targets import Amount, Classes
from posterity.runs.tuning import fresh_rows
from posterity.startup import fitting_threads, put_off_compiler

WORK = "training"  # where a training works
CHECKPOINT = "checkpoint"  # in the folder of work
LOCK = ".training.lock"  # held while a training goes on


@dataclass(frozen=True, eq=False)
class Plan:
    """A training that is ready to start, or to go on.

    Args:
        folder: The folder of the new run.
        config: How to train, every question answered.
        data: Which rows.
        preprocessing: What is done to them.
        train: The training examples.
        test: The held-out examples; None where there are none.
        notes: What is unusual about the data.
        folds: What cross-validation found, once it was run.
    """

    folder: Path
    config: Config
    data: Data
    preprocessing: Preprocessing
    train: Examples
    test: Examples | None
    notes: list[str]
    folds: OutOfFold | None = None

    @property
    def rows(self) -> RowCounts:
        """How many rows to train on and to hold out."""
        return RowCounts(len(self.train.ids), 0 if self.test is None else len(self.test.ids))

    def content(self) -> dict[str, Any]:
        """What is written down of it."""
        return {
            "config": asdict(self.config),
            "data": self.data.settings(),
            "preprocessing": self.preprocessing.settings(),
        }


def prepare(folder: Path, config: Config, data: Data, **columns: Any) -> Plan:
    """Read the data, learn the preprocessing, and decide what the configuration leaves open.

    Args:
        folder: The folder of the new run.
        config: How to train.
        data: Which rows.
        **columns: The user's options for columns, see `Preprocessing.of`.
    """
    notes: list[str] = []
    rows, ids = data.select(folder, "train", notes)
    if len(rows) < 2:
        raise InvalidInput(f"data: expected at least two training rows with a {data.target}, got {len(rows)}")
    known = [name for name in (data.id_column, data.test.get("column")) if name is not None]
    ignore = (*columns.pop("ignore", ()), *known)
    if data.encoding is not None:
        columns |= {"encoded": data.encoding.column}
    preprocessing = Preprocessing.of(rows, data.target, ignore=ignore, **columns)
    train = preprocessing.examples(rows, ids, notes)
    test = held_out(folder, data, preprocessing, notes)
    notes += suspicions(preprocessing, rows, train, test)
    return Plan(folder, decided(config, preprocessing, len(train.ids)), data, preprocessing, train, test, notes)


def reopen(folder: Path) -> Plan:
    """The training that was under way in a folder."""
    path = folder / TRAINING
    if not path.is_file():
        got = "a run that is finished; every other command takes it" if (folder / LIST).exists() else "none"
        raise RefusedFile(f"{folder}: expected an unfinished training to resume, got {got}")
    content = read_sealed(path)
    try:
        hidden = content["config"]["hidden"]
        config = Config(**{**content["config"], "hidden": None if hidden is None else tuple(hidden)})
        data = Data.restored(content["data"])
        preprocessing = Preprocessing.restored(content["preprocessing"])
    except (KeyError, TypeError) as why:
        raise RefusedFile(f"{path}: expected the settings of a training, got others ({why})") from why
    notes: list[str] = []
    rows, ids = data.select(folder, "train", notes)
    train = preprocessing.examples(rows, ids, notes)
    test = held_out(folder, data, preprocessing, notes)
    return Plan(folder, config, data, preprocessing, train, test, notes, kept(folder / WORK))


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
        plan = replace(plan, config=replace(plan.config, epochs=_length(plan, plan.folds)))
    with locked(folder, LOCK), fitting_threads(build(plan), plan.config.batch_size or USUAL):
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


def build(plan: Plan, seed: int | None = None) -> nn.Module:
    """The network of a plan, with the initial weights of its seed or of another."""
    config, preprocessing = plan.config, plan.preprocessing
    seed = config.seed if seed is None else seed
    about: dict[str, Any] = {"hidden": config.hidden, "seed": seed, "dropout": config.dropout}
    return network(config.model or "mlp", preprocessing.shape, preprocessing.target.outputs, **about).to(config.device)


def held_out(folder: Path, data: Data, preprocessing: Preprocessing, notes: list[str]) -> Examples | None:
    """The examples to test with; None where there are none."""
    if not data.test:
        return None
    here: list[str] = []
    rows, ids = preprocessing.known(data.select(folder, "test", here), here)
    found = preprocessing.examples(rows, ids, here) if len(rows) else None
    notes += [f"held-out rows: {note}" for note in here if note not in notes]
    return found


def probe(plan: Plan) -> Plan:
    """The plan with what was left open decided: epochs by cross-validation, settings of IVON by a short training."""
    put_off_compiler()
    with fitting_threads(build(plan), plan.config.batch_size or USUAL):
        return _with_settings(cross_validate(plan))


def cross_validate(plan: Plan) -> Plan:
    """The plan with predictions out of fold, and the length at which these were best, unless the user gave one."""
    config, n = plan.config, len(plan.train.ids)
    if config.model == HEAD:
        judging = fresh_rows(n, config.seed) if plan.data.encoding is not None and plan.data.encoding.tuned else None
        chosen = choose_head(plan.train, plan.preprocessing.target.outputs, min(config.folds, n), config.seed, judging)
        options = {**chosen.options(), **config.options}
        return replace(plan, config=replace(config, options=options), folds=chosen.folds)
    found = None
    if config.folds:
        make = lambda seed: build(plan, seed)  # noqa: E731 (what the folds ask for)
        target, folds = plan.preprocessing.target, min(config.folds, n)
        about: dict[str, Any] = {"batch_size": config.batch_size or USUAL, "seed": config.seed}
        if folds_follow(config.model, config.method):
            about |= {"lr": config.lr, "decay": config.options.get("weight_decay", 0.0)}
            about |= {"longest": LONGEST_FOLD, "averaged": True} if n >= LONG else {}
        found = cross_validated(make, plan.train, target, folds, **about)
    if config.epochs is None:
        config = replace(config, epochs=_length(plan, found))
    if found is not None and _noise_as_fit(plan):
        config = replace(config, options={"budget": usual_budget(found.loss), **config.options})
    plan = replace(plan, config=config, folds=found)
    if found is None or not isinstance(plan.preprocessing.target, Amount) or n >= LONG:
        return plan
    if not folds_follow(config.model, config.method):
        return plan
    learn = lambda some: _learn(plan, some, progress=False).model  # noqa: E731
    return replace(plan, folds=shrunk(found, plan.train, min(config.folds, n), config.seed, learn))


def _length(plan: Plan, found: OutOfFold | None) -> int:
    config, n = plan.config, len(plan.train.ids)
    stretched = STRETCH if folds_follow(config.model, config.method) else stretch(config.method, _lr(plan))
    steps = -(-n // (config.batch_size or USUAL))
    epochs = best_epochs(found, steps, stretched, config.folds or FOLDS, late=_noise_as_fit(plan))
    return bounded(epochs, steps) if folds_follow(config.model, config.method) else epochs


def _noise_as_fit(plan: Plan) -> bool:
    """Whether length and noise are those that `posterity.fit` cross-validates: for classes, but not of tables."""
    config, target = plan.config, plan.preprocessing.target
    variational = config.method == "variational" and not folds_follow(config.model, config.method)
    return variational and isinstance(target, Classes)


def _lr(plan: Plan) -> float | None:
    """The learning rate of the training, as `fit` chooses it where the user gives none; None for several networks."""
    lr, learner = plan.config.lr, METHODS.get(plan.config.method)
    return learner.usual_lr(build(plan)) if lr is None and learner is not None else lr


def _with_settings(plan: Plan) -> Plan:
    """The plan with lr, ess and hess_init of IVON as a short probe suggests, unless the user gave them."""
    config = plan.config
    if config.method != "ivon" or (config.lr is not None and "hess_init" in config.options):
        return plan
    size, likelihood = config.batch_size or USUAL, plan.preprocessing.target.likelihood
    with warnings.catch_warnings():  # that the probe of few rows met no tolerance: cross-validation has the last word
        warnings.filterwarnings("ignore", "suggest:")
        found = suggest(build(plan), plan.train, likelihood=likelihood, batch_size=size, seed=config.seed)
    options = {"ess": found.ess, "hess_init": found.hess_init, **config.options}
    return replace(plan, config=replace(config, lr=found.lr if config.lr is None else config.lr, options=options))


def _fit(plan: Plan, work: Path, callbacks: list[Any], progress: bool | None) -> Run:
    config, target = plan.config, plan.preprocessing.target
    if isinstance(target, Classes) and config.model == HEAD:
        return train_head(build(plan), plan.train, target, **config.options)
    return _learn(
        plan,
        plan.train,
        validation=plan.test,
        callbacks=callbacks,
        checkpoint=work / CHECKPOINT,
        resume=_begun(work),
        progress=progress,
    )


def _learn(plan: Plan, examples: Examples, **about: Any) -> Run:
    """The training of a plan, on all of its examples or on some."""
    config, target = plan.config, plan.preprocessing.target
    looks: dict[str, Any] = {"watch": False} if config.method == "variational" else {}  # the held-out rows are to judge
    return fit(
        build(plan),
        examples,
        method=config.method,
        likelihood=with_noise(target, plan.train, plan.folds),
        epochs=config.epochs,
        batch_size=config.batch_size or USUAL,
        lr=config.lr,
        seed=config.seed,
        class_names=target.names if isinstance(target, Classes) else None,
        **about,
        **looks | dict(config.options),
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
