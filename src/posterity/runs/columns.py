"""Columns of a table as numbers: what kind each one is, learnt from the training rows and applied alike ever after."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from posterity.cells import counted
from posterity.runs.written import ISO, Vector, ambiguous, days, numbers, several_units, spelling

Matrix = np.ndarray[Any, np.dtype[np.float32]]

LEVELS = 100  # categories that get a number of their own; rarer ones share a row of zeros
WORDS = 2000  # words of a bag of words
_FAR = 1e30  # standard deviations, beyond which a network answers with infinity
LIMIT = 3.0  # standard deviations towards which larger ones are bent
_BINS, _BINS_OF_MANY, _MANY = 64, 16, 200_000  # of a column of numbers; fewer from so many rows on, for the memory
_CENTRED = 50_000  # rows that are enough to know the mean of a bin
_CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}  # in days
BENT, BIN, OTHER = "bent", "bin", "other"  # sorts of numbers that a column becomes
_FEW_LEVELS = 10  # that may well be names, though they begin with numbers
WORD = re.compile(r"\w\w+")


@dataclass(frozen=True)
class Column(ABC):
    """How one column becomes numbers."""

    name: str
    kind: ClassVar[str]

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers it becomes."""

    @abstractmethod
    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        """The numbers (rows, width); what is unusual about the values goes to the notes."""

    @property
    def sorts(self) -> list[str]:
        """What each of these numbers is: bent towards ±LIMIT, a bin, or other."""
        return [OTHER] * self.width

    def remark(self, values: pd.Series[Any]) -> str | None:
        """A note on how its training values are read, where that is not obvious."""
        return None

    def settings(self) -> dict[str, Any]:
        """What is needed to build it again."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Number(Column):
    """A number as z = (value − offset)/scale, bent towards ±LIMIT, and as its place among the training values.

        z / √(1 + z²/LIMIT²),    clip((value − b_t)/(b_{t+1} − b_t), 0, 1) − c_t   for each bin between edges b

    The bins hold equally many training values: a linear function of them is piecewise linear in the value, which lets
    a network follow thresholds. Each is centred at its training mean c: otherwise the weight of a bin that few rows
    reach learns from the rows that do not. Offset and scale are median and interquartile range, which a few values
    cannot change. Missing values are filled with the median, with a flag for them if there were any in training.

    Args:
        name: Name of the column.
        offset: What is subtracted.
        scale: What is divided by.
        fill: The replacement of missing values.
        flag: Whether training values were missing.
        decimal: The decimal sign of numbers that are written as text.
        bent: Whether large z are bent.
        edges: Edges of the bins; none in columns of two values.
        centres: Training mean of each bin; ½ where a run of an earlier version has none.
        unit: What is written behind each number, see `written.numbers`.

    References:
        Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning", 2022.
        Holzmüller, Grinsztajn and Steinwart, "Better by default", 2024.
    """

    offset: float
    scale: float
    fill: float
    flag: bool
    decimal: str = "."
    bent: bool = False
    edges: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()
    unit: str = ""
    kind = "number"

    @classmethod
    def of(cls, name: str, found: Vector, standardise: bool, decimal: str = ".") -> Number:
        """The column, learnt from training values, NaN where they are none."""
        known = found[np.isfinite(found)]
        offset, scale = _location(known) if standardise else (0.0, 1.0)
        edges = _edges(known) if standardise else ()
        flag, fill = bool((~np.isfinite(found)).any()), float(np.median(known))
        filled = np.where(np.isfinite(found), found, fill)
        some = filled[:: -(-len(filled) // _CENTRED)]
        centres = tuple(_places(some, edges).mean(0).tolist()) if edges else ()
        return cls(name, offset, scale, fill, flag, decimal, standardise, edges, centres)

    def remark(self, values: pd.Series[Any]) -> str | None:
        return spelling(self.name, self.decimal, self.unit)

    @property
    def width(self) -> int:
        return 1 + self.flag + max(len(self.edges) - 1, 0)

    @property
    def sorts(self) -> list[str]:
        bins = max(len(self.edges) - 1, 0)
        first = BENT if self.bent else OTHER
        return [first, *[OTHER] * self.flag, *[BIN] * bins, *[OTHER] * (self.width - 1 - self.flag - bins)]

    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        found = self.read(values)
        missing = ~(np.abs(found - self.offset) < _FAR * self.scale)
        unread = int((missing & values.notna().to_numpy()).sum())
        if unread:
            notes.append(f"{self.name}: {unread} values are not {self.kind}s; they count as missing")
        if missing.any() and not self.flag:
            notes.append(f"{self.name}: {int(missing.sum())} values are missing; the training median replaces them")
        filled = np.where(missing, self.fill, found)
        scaled = (filled - self.offset) / self.scale
        first = scaled / np.sqrt(1 + np.square(scaled / LIMIT)) if self.bent else scaled
        parts = [first[:, None], missing[:, None]] if self.flag else [first[:, None]]
        if self.edges:
            parts.append(_places(filled, self.edges) - np.array(self.centres or 0.5))
        return np.concatenate(parts, 1).astype(np.float32)

    def read(self, values: pd.Series[Any]) -> Vector:
        """The values as numbers, NaN where they are none."""
        return numbers(values, self.decimal, self.unit)


@dataclass(frozen=True)
class Date(Number):
    """A date or a time, as the number of days since 1970, with sine and cosine of its place in a day, week or year.

    A cycle is used where the training dates span two of it and differ within it.
    """

    written: str = ISO
    cycles: tuple[str, ...] = ()
    kind = "date"

    @classmethod
    def of(cls, name: str, found: Vector, standardise: bool, written: str = ISO) -> Date:
        known = found[np.isfinite(found)]
        cycles = [
            name for name, length in _CYCLES.items() if np.ptp(known) >= 2 * length and np.ptp(known % length) > 0
        ]
        return cls(**vars(Number.of(name, found, standardise)), written=written, cycles=tuple(cycles))

    @property
    def width(self) -> int:
        return super().width + 2 * len(self.cycles)

    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        encoded, found = super().encode(values, notes), self.read(values)
        angles = [2 * np.pi * (found % _CYCLES[name]) / _CYCLES[name] for name in self.cycles]
        waves = [np.nan_to_num(wave(angle)) for angle in angles for wave in (np.sin, np.cos)]
        return np.column_stack([encoded, *waves]).astype(np.float32)

    def read(self, values: pd.Series[Any]) -> Vector:
        return days(values, self.written)

    def remark(self, values: pd.Series[Any]) -> str | None:
        if not ambiguous(values, self.written):
            return None
        first = as_text(values[values.notna()])[0]
        return f"{self.name}: dates such as {first} are read as month, day, year; write 2020-12-31 to be certain"


@dataclass(frozen=True)
class Category(Column):
    """One number for each level, one where the value is that level; "" is the level of missing values."""

    levels: tuple[str, ...]
    kind = "category"

    @classmethod
    def of(cls, name: str, values: pd.Series[Any]) -> Category:
        """The levels of the training values, the most frequent first kept."""
        counts = Counter(as_text(values))
        return cls(name, tuple(sorted(level for level, _ in counts.most_common(LEVELS))))

    @property
    def width(self) -> int:
        return len(self.levels)

    def remark(self, values: pd.Series[Any]) -> str | None:
        several = several_units(values) if len(self.levels) > _FEW_LEVELS else ""
        return f"{self.name}: categories, as its numbers have several units ({several})" if several else None

    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        place = {level: i for i, level in enumerate(self.levels)}
        found = as_text(values)
        index = np.array([place.get(value, -1) for value in found], dtype=np.int64)
        unseen = Counter(value for value, i in zip(found, index) if i < 0)
        if unseen and self.width < LEVELS:
            some = ", ".join(repr(value) if value else "missing" for value, _ in unseen.most_common(3))
            unknown = f"{counted(unseen.total(), 'value')} not seen in training ({some})"
            notes.append(f"{self.name}: {unknown}, treated as no category")
        encoded = np.zeros((len(found), self.width), dtype=np.float32)
        known = index >= 0
        encoded[known.nonzero()[0], index[known]] = 1.0
        return encoded


@dataclass(frozen=True)
class Text(Column):
    """A bag of words: tf-idf of the words that most texts share, each text scaled to the same length."""

    words: tuple[str, ...]
    weights: tuple[float, ...]
    kind = "text"

    @classmethod
    def of(cls, name: str, values: pd.Series[Any]) -> Text:
        """The words that occur in most training texts (in at least two), with log((1 + n)/(1 + occurrences)) + 1."""
        texts = as_text(values)
        counts = Counter(word for text in texts for word in set(WORD.findall(text.lower())))
        kept = sorted(word for word, count in counts.most_common(WORDS) if count > 1)
        return cls(name, tuple(kept), tuple(float(np.log((1 + len(texts)) / (1 + counts[w])) + 1) for w in kept))

    @property
    def width(self) -> int:
        return len(self.words)

    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        place = {word: i for i, word in enumerate(self.words)}
        encoded = np.zeros((len(values), self.width), dtype=np.float32)
        for row, text in enumerate(as_text(values)):
            for word, count in Counter(WORD.findall(text.lower())).items():
                if word in place:
                    encoded[row, place[word]] = count * self.weights[place[word]]
        length = np.linalg.norm(encoded, axis=1, keepdims=True)
        if (length == 0).any():
            notes.append(f"{self.name}: {counted(int((length == 0).sum()), 'text')} without a word known from training")
        return (_LENGTH * encoded / np.maximum(length, 1e-12)).astype(np.float32)


_LENGTH = 4.0  # of a text's vector: weights under a standard normal prior should not have to be huge


@dataclass(frozen=True)
class Ignored(Column):
    """A column without information, or one that is not used."""

    reason: str
    kind = "ignored"

    @property
    def width(self) -> int:
        return 0

    def encode(self, values: pd.Series[Any], notes: list[str]) -> Matrix:
        return np.zeros((len(values), 0), dtype=np.float32)


KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Date, Category, Text, Ignored)}


def _location(known: Vector) -> tuple[float, float]:
    """Median and interquartile range as that of a normal, or mean and standard deviation where half are the same."""
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    if high > low and len(np.unique(known)) > 2:
        return float(middle), float(high - low) / 1.349
    return float(known.mean()), float(known.std()) or 1.0


def _places(values: Vector, edges: tuple[float, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How far each value has come through each bin, from 0 to 1."""
    low, high = np.array(edges[:-1]), np.array(edges[1:])
    return np.clip((values[:, None] - low) / (high - low), 0, 1)


def _edges(known: Vector) -> tuple[float, ...]:
    """Edges of bins with equally many values, fewer of them where there are few values; few different ones are all.

    A value counts for no more than a bin: if nine amounts of ten are 0, the tenth still gets bins.
    """
    most = _BINS if len(known) < _MANY else _BINS_OF_MANY
    count = min(most, max(2, int(np.sqrt(len(known)) / 1.5)))
    edges, times = np.unique(known, return_counts=True)
    if len(edges) > count + 1:
        below = np.cumsum(np.minimum(times, len(known) / count))
        places = np.searchsorted(below, below[-1] * np.arange(1, count) / count)
        edges = np.unique(edges[[0, *places, -1]])
    return tuple(edges.tolist()) if len(edges) > 2 else ()


def restore(settings: dict[str, Any]) -> Column:
    """The column that `settings` describes."""
    values = from_json(settings)
    return KINDS[values.pop("kind")](**values)


def from_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were before they were written: JSON makes lists of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def as_text(values: pd.Series[Any]) -> list[str]:
    """Values as text, "" where missing; whole numbers look the same from every file format."""
    if pd.api.types.infer_dtype(values, skipna=True) not in ("string", "integer", "floating", "boolean"):
        return [_canonical(value) if there else "" for value, there in zip(values, values.notna())]
    codes, different = pd.factorize(values)  # each different value is looked at once; missing ones are -1
    texts = np.array([*(_canonical(value) for value in different), ""], dtype=object)
    return list(texts[codes])


def _canonical(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text
