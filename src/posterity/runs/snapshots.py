"""The memory of a run while it is trained: a map at several epochs, kept on disk so that a resumed run has them too."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from posterity.errors import PosterityError
from posterity.files import read_tensors, write_tensors
from posterity.learning import Callback, Moment
from posterity.memory import memory_map

SHOWN = 8  # maps over a whole training
LARGEST = 5000  # examples times outputs up to which they are drawn by default: more would cost more than training
PICTURE = 5  # how many rows of a table a picture counts for
COLUMNS = ("id", "error", "leverage", "loo_nll", "self_influence")


class Snapshots(Callback):
    """A memory map every so many epochs.

    Args:
        folder: Where the maps are kept until training ends.
        data: The training examples.
        epochs: Epochs in all; at most `SHOWN` of them are looked at, the last one among them.
    """

    def __init__(self, folder: Path, data: Any, epochs: int) -> None:
        self.folder, self.data = folder, data
        self.every = -(-epochs // SHOWN)
        self.epochs = epochs
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, moment: Moment) -> None:
        # Who was killed between a checkpoint and the map after it resumes without that map.
        if moment.step > 0 and moment.step % (moment.steps // moment.epochs) == 0:
            self.epoch(moment)

    def epoch(self, moment: Moment) -> None:
        """After an epoch: a map, if it is its turn."""
        path = self._path(moment.epoch)
        due = moment.epoch % self.every == 0 or moment.epoch == self.epochs
        if not due or path.exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # early posteriors are unfinished, which is what is to be seen here
            try:
                found = memory_map(moment.model, moment.posterior(), self.data).columns
            except PosterityError:  # weights so far off that some figure is not finite: no map of this epoch
                return
        write_tensors(path, {name: torch.as_tensor(found[name].to_numpy(copy=True)) for name in COLUMNS})

    def table(self) -> pd.DataFrame:
        """All maps, one below the other."""
        parts = []
        for path in sorted(self.folder.glob("epoch-*.safetensors")):
            columns = read_tensors(path)
            epoch = int(path.stem.removeprefix("epoch-"))
            parts.append(pd.DataFrame({"epoch": epoch, **{name: columns[name].numpy() for name in COLUMNS}}))
        if not parts:
            return pd.DataFrame(columns=["epoch", *COLUMNS])
        return pd.concat(parts, ignore_index=True)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06d}.safetensors"
