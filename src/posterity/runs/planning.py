"""A training that is ready to start: the rows, what is done to them, the network and its settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from posterity.errors import InvalidInput, RefusedFile, require
from posterity.files import read_sealed
from posterity.learning import Run, fit
from posterity.learning.folds import OutOfFold
from posterity.runs.config import USUAL, Config, decided, folds_follow
from posterity.runs.data import Data
from posterity.runs.folds import kept
from posterity.runs.intervals import with_noise
from posterity.runs.networks import RESIDUAL, network
from posterity.runs.preprocessing import Examples, Preprocessing
from posterity.runs.record import RowCounts
from posterity.runs.residual_network import ResidualNetwork, start_from_ridge
from posterity.runs.store import LIST, TRAINING
from posterity.runs.suspicions import suspicions
from posterity.runs.table_settings import LATE_FALL, LONG
from posterity.runs.targets import Classes

WORK = "training"  # where a training works


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
        open: Settings of a table that it may choose as well, as the user has not given them: "model" (of amounts), "lr"
            and "weight_decay".
    """

    folder: Path
    config: Config
    data: Data
    preprocessing: Preprocessing
    train: Examples
    test: Examples | None
    notes: list[str]
    folds: OutOfFold | None = None
    open: frozenset[str] = frozenset()

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
        raise InvalidInput(f"data: expected at least two training rows with a value of {data.target}, got {len(rows)}")
    known = [name for name in (data.id_column, data.test.get("column")) if name is not None]
    asked = columns.pop("ignore", ())
    require(data.target not in asked, "ignore", f"columns other than the target {data.target!r}", data.target)
    ignore = (*asked, *known)
    if data.encoding is not None:
        columns |= {"encoded": data.encoding.column}
    preprocessing = Preprocessing.of(rows, data.target, ignore=ignore, **columns)
    train = preprocessing.examples(rows, ids, notes)
    test = held_out(folder, data, preprocessing, notes)
    notes += suspicions(preprocessing, rows, train, test)
    settings = decided(config, preprocessing, len(train.ids))
    return Plan(folder, settings, data, preprocessing, train, test, notes, open=_open(config, settings))


def _open(asked: Config, settings: Config) -> frozenset[str]:
    """What cross-validation may choose."""
    if not folds_follow(settings.model, settings.method):
        return frozenset()
    given = {
        "model": asked.model is not None or settings.model != RESIDUAL,
        "lr": asked.lr is not None,
        "weight_decay": bool({"prior", "weight_decay"} & set(asked.options)),  # which have the same effect
    }
    return frozenset(name for name, there in given.items() if not there)


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


def held_out(folder: Path, data: Data, preprocessing: Preprocessing, notes: list[str]) -> Examples | None:
    """The examples to test with; None where there are none."""
    if not data.test:
        return None
    here: list[str] = []
    rows, ids = preprocessing.known(data.select(folder, "test", here), here)
    found = preprocessing.examples(rows, ids, here) if len(rows) else None
    notes += [f"held-out rows: {note}" for note in here if note not in notes]
    return found


def build(plan: Plan, seed: int | None = None) -> nn.Module:
    """The network of a plan, with the initial weights of its seed or of another."""
    config, preprocessing = plan.config, plan.preprocessing
    seed = config.seed if seed is None else seed
    about: dict[str, Any] = {"hidden": config.hidden, "seed": seed, "dropout": config.dropout}
    return network(config.model or "mlp", preprocessing.shape, preprocessing.target.outputs, **about).to(config.device)


def learn(plan: Plan, examples: Examples, **about: Any) -> Run:
    """The training of a plan, on all of its examples or on some."""
    config, target = plan.config, plan.preprocessing.target
    model = build(plan)
    if isinstance(model, ResidualNetwork):
        start_from_ridge(model, plan.preprocessing.sorts, examples.inputs, examples.targets)
    usual: dict[str, Any] = {"watch": False} if config.method == "variational" else {}  # the held-out rows are to judge
    end_known = plan.folds is not None and plan.folds.memorises
    if folds_follow(config.model, config.method) and end_known and len(plan.train.ids) >= LONG:
        usual["schedule"] = LATE_FALL
    return fit(
        model,
        examples,
        method=config.method,
        likelihood=with_noise(target, plan.train, plan.folds),
        epochs=config.epochs,
        batch_size=config.batch_size or USUAL,
        lr=config.lr,
        seed=config.seed,
        class_names=target.names if isinstance(target, Classes) else None,
        **about,
        **usual | dict(config.options),
    )
