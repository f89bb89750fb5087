"""From rows to tensors: what every column became in training, written down, and done alike to every later row."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.errors import InvalidInput, RefusedFile, expected
from posterity.runs.columns import OTHER, Column, Ignored, Matrix, restore
from posterity.runs.data import Selection
from posterity.runs.inferring import infer
from posterity.runs.readers import Rows
from posterity.runs.targets import Classes, Target, infer_target, restore_target

ENCODED = "read by the encoder"


class Examples(NamedTuple):
    """Rows as a model takes them; `posterity` reads it wherever it takes data."""

    inputs: Tensor
    targets: Tensor
    ids: Tensor


@dataclass(frozen=True)
class InputBlock:
    """An array for each row: (value − offset)/scale, offsets and scales by number (vectors) or by channel (pictures).

    Pictures have their channels first, and bytes become numbers in [0, 1] before anything else.
    """

    shape: tuple[int, ...]
    offset: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, block: np.ndarray[Any, Any], standardise: bool) -> InputBlock:
        """The block, learnt from its training rows."""
        values = _channels_first(block)
        axes = (0, *range(2, values.ndim))
        count = values.shape[1]
        offset, scale = np.zeros(count), np.ones(count)
        if standardise:
            known = np.isfinite(values)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a number that no row has is 0 everywhere
                offset = np.asarray(np.nan_to_num(np.mean(values, axes, dtype=np.float64, where=known)))
                spread = np.nan_to_num(np.std(values, axes, dtype=np.float64, where=known))
            scale = np.where(spread > 0, spread, 1.0)
        return cls(tuple(values.shape[1:]), tuple(offset.tolist()), tuple(scale.tolist()))

    def encode(self, block: np.ndarray[Any, Any], notes: list[str]) -> Matrix:
        """The numbers, shaped (rows, *shape)."""
        values = _channels_first(block)
        if values.shape[1:] != self.shape:
            raise expected("inputs", f"arrays of shape {self.shape} as in training", tuple(values.shape[1:]))
        around = (1, -1, *[1] * (values.ndim - 2))
        scaled = (values - np.reshape(self.offset, around)) / np.reshape(self.scale, around)
        missing = ~np.isfinite(scaled)
        if missing.any():
            notes.append(f"inputs: {int(missing.sum())} numbers are missing; the training mean replaces them")
        return np.where(missing, 0.0, scaled).astype(np.float32)


@dataclass(frozen=True)
class Preprocessing:
    """Everything that turns rows into examples.

    Args:
        columns: The columns of the table, in order.
        target: What is predicted.
        block: The array beside the table, if there is one.
    """

    columns: tuple[Column, ...]
    target: Target
    block: InputBlock | None = None

    @classmethod
    def of(
        cls,
        rows: Rows,
        target: str,
        *,
        task: str | None = None,
        text: str | None = None,
        ignore: tuple[str, ...] = (),
        standardise: bool = True,
        encoded: str | None = None,
    ) -> Preprocessing:
        """Inferred from the training rows.

        Args:
            rows: The training rows.
            target: The column to predict.
            task: "classes", "amount" or "count", where the values are not to decide.
            text: A column to be read as text.
            ignore: Columns that are not to be used.
            standardise: Bring numbers to mean 0 and standard deviation 1.
            encoded: The column whose vectors, by a frozen network, are the block of the rows.
        """
        known = [str(name) for name in rows.table]
        for what, name in (("target", target), ("text", text), *(("ignore", i) for i in ignore)):
            if name is not None and name not in known:
                raise expected(what, f"a column among {known}", name)
        pictures = rows.block is not None and rows.block.ndim > 2
        columns: list[Column] = []
        for name in known:
            if name == target:
                continue
            if name in ignore or pictures:
                columns.append(Ignored(name, "as asked" if name in ignore else "beside pictures"))
                continue
            if name == encoded:
                columns.append(Ignored(name, ENCODED))
                continue
            as_text = True if name == text else False if rows.block is not None and encoded is None else None
            columns.append(infer(name, rows.table[name], standardise=standardise, text=as_text))
        block = None if rows.block is None else InputBlock.of(rows.block, standardise)
        if block is None and not any(column.width for column in columns):
            raise InvalidInput("data: expected at least one column to learn from, got none with different values")
        return cls(tuple(columns), infer_target(target, rows.table[target], task, standardise), block)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example's inputs."""
        width = sum(column.width for column in self.columns)
        if self.block is None:
            return (width,)
        return self.block.shape if width == 0 else (width + int(np.prod(self.block.shape)),)

    @property
    def sorts(self) -> list[str]:
        """What each input is, see `Column.sorts`; those of a block come last."""
        found = [sort for column in self.columns for sort in column.sorts]
        return found + [OTHER] * (int(np.prod(self.shape)) - len(found))

    def check_columns(self, rows: Rows) -> None:
        """Raise where a column of training is absent."""
        absent = [column.name for column in self.columns if column.width and column.name not in rows.table]
        if absent:
            fix = f"add {'it' if len(absent) == 1 else 'them'}; empty cells count as missing"
            raise InvalidInput(f"data: expected the columns of training, got none named {_listed(absent)}; {fix}")

    def inputs(self, rows: Rows, notes: list[str]) -> Tensor:
        """The inputs of rows; what is unusual about them goes to the notes."""
        self.check_columns(rows)
        used = [column for column in self.columns if column.width]
        parts = [column.encode(rows.table[column.name], notes) for column in used]
        if self.block is not None:
            if rows.block is None:
                shape = self.block.shape
                raise InvalidInput(f"data: expected an array of shape {shape} for each row (--embeddings), got none")
            encoded = self.block.encode(rows.block, notes)
            if not parts:
                return torch.from_numpy(encoded)
            parts.append(encoded.reshape(len(rows), -1))
        return torch.from_numpy(np.concatenate(parts, 1))

    def examples(self, rows: Rows, ids: Tensor, notes: list[str]) -> Examples:
        """Rows that all have a target, as examples."""
        return Examples(self.inputs(rows, notes), self.target.encode(rows.table[self.target.name]), ids)

    def known(self, selection: Selection, notes: list[str]) -> Selection:
        """The rows whose target training has met: a class that fell to the held-out rows alone is not among them."""
        known = self.target.knows(selection.rows.table[self.target.name])
        if known.all() or not isinstance(self.target, Classes):
            return selection
        notes.append(
            f"{self.target.name}: {(~known).sum()} held-out rows of classes without training rows are left out"
        )
        return Selection(selection.rows.take(known.nonzero()[0]), selection.ids[torch.from_numpy(known)])

    def extended(self, rows: Rows) -> Preprocessing:
        """The same, ready for targets that only these rows have."""
        if self.target.name not in rows.table:
            return self
        return replace(self, target=self.target.extended(rows.table[self.target.name]))

    def settings(self) -> dict[str, Any]:
        """What is needed to build it again."""
        return {
            "columns": [column.settings() for column in self.columns],
            "target": self.target.settings(),
            "block": None if self.block is None else vars(self.block),
        }

    @classmethod
    def restored(cls, settings: dict[str, Any]) -> Preprocessing:
        """The preprocessing that `settings` describes."""
        try:
            block = settings["block"]
            return cls(
                tuple(restore(column) for column in settings["columns"]),
                restore_target(settings["target"]),
                None if block is None else InputBlock(**{name: tuple(value) for name, value in block.items()}),
            )
        except (KeyError, TypeError, ValueError) as why:
            raise RefusedFile(
                f"run: expected a description of its preprocessing, got one that makes none ({why})"
            ) from why


def _channels_first(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floating-point arrays (rows, channels or numbers, ...), bytes divided by 255."""
    values = block.astype(np.float32) / 255 if block.dtype == np.uint8 else block
    if not np.issubdtype(values.dtype, np.number) or np.iscomplexobj(values):
        raise expected("inputs", "real numbers", f"an array of {values.dtype}")
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[-1] in (1, 3, 4) and values.shape[1] not in (1, 3, 4):
        return np.moveaxis(values, -1, 1)
    return values


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
