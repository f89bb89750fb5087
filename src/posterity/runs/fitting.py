"""From a file to a run: read, preprocess, probe, train, and write everything down."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.errors import InvalidInput, RefusedFile, expected, require, require_whole
from posterity.files import make_folder, read_sealed, write_sealed
from posterity.learning import Run, fit
from posterity.learning.checkpoints import holds_checkpoint
from posterity.learning.folds import FOLDS, OutOfFold
from posterity.learning.folds import LR as LR_OF_FOLDS
from posterity.learning.length import best_epochs, stretch
from posterity.optim import suggest
from posterity.runs._folder import RunFolder
from posterity.runs.baseline import baseline
from posterity.runs.data import Data
from posterity.runs.folds import cross_validated, keep, kept
from posterity.runs.folds import scores as fold_scores
from posterity.runs.intervals import widths, with_noise
from posterity.runs.networks import network
from posterity.runs.predicting import SAMPLES, evaluated
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.record import RowCounts, RunRecord
from posterity.runs.snapshots import LARGEST, PICTURE, Snapshots
from posterity.runs.store import LIST, TRAINING, locked
from posterity.runs.suspicions import suspicions
from posterity.runs.table_network import MEMBERS
from posterity.runs.table_settings import LR, STRETCH, usual_batch, usual_prior
from posterity.runs.targets import Classes
from posterity.startup import fitting_threads, put_off_compiler

WORK = "training"  # where a training works
CHECKPOINT = "checkpoint"  # in the folder of work
LOCK = ".training.lock"  # held while a training goes on
# Precision of IVON's prior on every weight, and the number of rows below which it is less in proportion: amounts are
# overfitted under a weak prior, while nothing would be learnt from few labels under a strong one.
PRIOR, FEW_LABELS, FEW_AMOUNTS = 10.0, 1000, 120
HEAD = "mlp"  # the model on the vectors of a frozen network
FEWEST_ROWS = 20  # below which no part can be spared for cross-validation
USUAL = 64  # examples a step, but for tables
_GAUSSIAN = ("variational", "ivon", "bayes_by_backprop")  # methods whose posterior answers at any moment


@dataclass(frozen=True)
class Config:
    """How a run is trained; None is decided by the data and by a short probe, and then written down.

    Args:
        model: "linear", "mlp", "tabular", "cnn" or "module:factory"; by default "cnn" for pictures, else "tabular".
        hidden: Widths of the hidden layers, where the model's own are not meant.
        method: As in `posterity.fit`; "auto" is "variational" for the model "tabular", and "ivon" for others.
        epochs: Passes over the data; by default as many as cross-validation finds best.
        folds: Parts of the cross-validation, which also finds wrong labels; 0 for none.
        batch_size: Examples a step; by default 64, and for tables 128, or up to 1024 where they are long.
        lr: Learning rate.
        options: What the method takes beyond that, such as ess, hess_init and prior.
        dropout: Rate of dropout layers; 0.1 for the method "dropout".
        seed: Seed of everything random.
        samples: Draws of the weights for each prediction.
        track: Draw the memory map at several epochs; by default where that is cheap.
        device: Where to train.
        prediction: How predictions are made, see `posterity.predict`.
    """

    model: str | None = None
    hidden: tuple[int, ...] | None = None
    method: str = "auto"
    epochs: int | None = None
    folds: int = FOLDS
    batch_size: int | None = None
    lr: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dropout: float | None = None
    seed: int = 0
    samples: int = SAMPLES
    track: bool | None = None
    device: str = "cpu"
    prediction: str = "sampled"

    def __post_init__(self) -> None:
        require_whole("batch size", USUAL if self.batch_size is None else self.batch_size)
        require(self.folds == 0 or self.folds >= 2, "folds", "0, or at least 2", self.folds)
        require(abs(self.seed) < 2**63, "seed", "a whole number below 2^63", self.seed)
        for name, value in {"lr": self.lr, **self.options}.items():  # JSON, in which all is written down, has no others
            require(not isinstance(value, float) or math.isfinite(value), name, "a finite number", value)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError):
            raise expected("device", "one that torch finds on this machine, such as cpu", self.device) from None


@dataclass(frozen=True, eq=False)
class Plan:
    """A training that is ready to start, or to go on.

    Args:
        folder: Where the run will lie.
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
        folder: Where the run will lie.
        config: How to train.
        data: Which rows.
        **columns: What the user says about columns, see `Preprocessing.of`.
    """
    notes: list[str] = []
    rows, ids = data.select(folder, "train", notes)
    if len(rows) < 2:
        raise InvalidInput(f"data: expected at least two training rows with a {data.target}, got {len(rows)}")
    known = [name for name in (data.id_column, data.test.get("column")) if name is not None]
    ignore = (*columns.pop("ignore", ()), *known)
    if data.encoding is not None:
        columns |= {"encoded": data.encoding.column}
        config = replace(config, model=config.model or HEAD)
    preprocessing = Preprocessing.of(rows, data.target, ignore=ignore, **columns)
    train = preprocessing.examples(rows, ids, notes)
    test = held_out(folder, data, preprocessing, notes)
    notes += suspicions(preprocessing, rows, train, test)
    return Plan(folder, _decided(config, preprocessing, train), data, preprocessing, train, test, notes)


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
        anew: Begin at the start, and give up a training that was under way in the folder.
        progress: Whether to show a bar; None where there is a terminal.
    """
    folder, work = plan.folder, plan.folder / WORK
    make_folder(folder)
    if plan.config.epochs is None:
        plan = replace(plan, config=replace(plan.config, epochs=_length(len(plan.train.ids), plan.config, plan.folds)))
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
    """Raise where a training would write into, and in the end remove, what is somebody else's."""
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
    rows, ids = preprocessing.known(data.select(folder, "test", notes), notes)
    return preprocessing.examples(rows, ids, notes) if len(rows) else None


def _decided(config: Config, preprocessing: Preprocessing, train: Examples) -> Config:
    """The configuration with every open question answered."""
    n, outputs = len(train.ids), preprocessing.target.outputs
    model = config.model or ("cnn" if len(preprocessing.shape) == 3 else "tabular")
    if config.method == "auto":
        config = replace(config, method="variational" if model == "tabular" else "ivon")
    found = asdict(config) | {"options": dict(config.options), "model": model}
    if config.method == "ivon":
        few = FEW_LABELS if isinstance(preprocessing.target, Classes) else FEW_AMOUNTS
        members = MEMBERS if model == "tabular" else 1  # each of which learns from its part of the rows
        found["options"].setdefault("prior", PRIOR * min(1.0, n / few) / members)
    if _folds_follow(model, config.method):
        found["lr"] = LR if config.lr is None else config.lr
        found["options"].setdefault("prior", usual_prior(n))
    found["batch_size"] = config.batch_size or (usual_batch(n) if model == "tabular" else USUAL)
    if config.method == "dropout" and config.dropout is None:
        found["dropout"] = 0.1
    if config.track is None:
        size = n * outputs * (PICTURE if len(preprocessing.shape) == 3 else 1)
        found["track"] = config.method in _GAUSSIAN and size <= LARGEST
    elif config.track and config.method not in _GAUSSIAN:
        raise expected("track", f"one of the methods {_GAUSSIAN}", config.method)
    if config.method == "laplace":
        found["prediction"] = "linearised"
    if n < FEWEST_ROWS:
        found["folds"] = 0
    return Config(**found)


def probe(plan: Plan) -> Plan:
    """The plan with what was left open decided: epochs by cross-validation, settings of IVON by a short training."""
    put_off_compiler()
    with fitting_threads(build(plan), plan.config.batch_size or USUAL):
        return _with_settings(cross_validate(plan))


def cross_validate(plan: Plan) -> Plan:
    """The plan with predictions out of fold, and trained as long as these were best, where the user did not say."""
    config, n = plan.config, len(plan.train.ids)
    found = None
    if config.folds:
        make = lambda seed: build(plan, seed)  # noqa: E731 (what the folds ask for)
        target, folds = plan.preprocessing.target, min(config.folds, n)
        lr = config.lr if _folds_follow(config.model, config.method) else None
        about: dict[str, Any] = {"batch_size": config.batch_size or USUAL, "seed": config.seed}
        found = cross_validated(make, plan.train, target, folds, lr=lr or LR_OF_FOLDS, **about)
    if config.epochs is None:
        config = replace(config, epochs=_length(n, config, found))
    return replace(plan, config=config, folds=found)


def _folds_follow(model: str | None, method: str) -> bool:
    """Whether the folds learn as the run will: by AdamW, with its learning rate."""
    return model == "tabular" and method == "variational"


def _length(n: int, config: Config, found: OutOfFold | None) -> int:
    stretched = STRETCH if _folds_follow(config.model, config.method) else stretch(config.method)
    return best_epochs(found, -(-n // (config.batch_size or USUAL)), stretched, config.folds or FOLDS)


def _with_settings(plan: Plan) -> Plan:
    """The plan with lr, ess and hess_init of IVON as a short probe suggests, where the user did not say."""
    config = plan.config
    if config.method != "ivon" or (config.lr is not None and "hess_init" in config.options):
        return plan
    size, likelihood = config.batch_size or USUAL, plan.preprocessing.target.likelihood
    found = suggest(build(plan), plan.train, likelihood=likelihood, batch_size=size, seed=config.seed)
    options = {"ess": found.ess, "hess_init": found.hess_init, **config.options}
    return replace(plan, config=replace(config, lr=found.lr if config.lr is None else config.lr, options=options))


def _fit(plan: Plan, work: Path, callbacks: list[Any], progress: bool | None) -> Run:
    config, target = plan.config, plan.preprocessing.target
    return fit(
        build(plan),
        plan.train,
        method=config.method,
        likelihood=with_noise(target, plan.train, plan.folds),
        epochs=config.epochs,
        batch_size=config.batch_size or USUAL,
        lr=config.lr,
        validation=plan.test,
        seed=config.seed,
        class_names=target.names if isinstance(target, Classes) else None,
        callbacks=callbacks,
        checkpoint=work / CHECKPOINT,
        resume=_begun(work),
        progress=progress,
        **config.options,
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
