"""What kind a column is, by its training values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from posterity.runs.columns import WORD, Category, Column, Date, Ignored, Number, Text, as_text
from posterity.runs.written import Vector, date_format, days, numbers, placeholders, read_numbers, several_units

_FEW = 50  # a column of no more distinct values is a category, however short the table
_NEARLY = 0.9  # share of different values from which on a column may name the rows
_FEWEST = 10  # steps that are enough to tell that a column rises
_SAMPLE = 1000  # values that decide what a column may be, before all of them do
_MOSTLY = 0.95  # share of numbers at which the rest of a column counts as missing
_ID = re.compile(r"(?i:(?:.*[ _.-])?(?:id|uuid|guid)|index|row|rownum|row_?number|.*#)|.*[a-z](?:Id|ID)")
_DIGITS = re.compile(r"\d{2,}")
_OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}( .*)?")


def infer(name: str, values: pd.Series[Any], *, standardise: bool = True, text: bool | None = None) -> Column:
    """What kind a column is, by its training values.

    Args:
        name: Its name.
        values: Its training values.
        standardise: Bring numbers to mean 0 and standard deviation 1.
        text: True where the user declares it as text, False where texts are not used.
    """
    known = values[values.notna()]
    distinct = known.nunique()
    if text:
        return Text.of(name, values)
    if name.startswith("Unnamed: "):  # as pandas calls what has no name: most often the numbers of rows it wrote itself
        return Ignored(name, "it has no name in the first line")
    if distinct == 0 or (distinct == 1 and len(known) == len(values)):
        return Ignored(name, "the same everywhere" if distinct else "empty")
    kind = pd.api.types.infer_dtype(known)
    if kind == "boolean":  # as the words "True" and "False" in files that hold nothing but text
        return Category.of(name, values)
    if distinct >= _NEARLY * len(known) >= _FEWEST and _ID.fullmatch(name) and _names_rows(known):
        every = "every row" if distinct == len(known) else "nearly every row"  # of a table with copies of some rows
        return Ignored(name, f"an identifier by its name, with a different value in {every}")
    few = distinct <= max(_FEW, len(known) / 20)
    if few and _codes(known):
        return Category.of(name, values)
    if not kind.startswith("datetime") and _plausible(known):
        found, decimal, unit = read_numbers(values)
        if _is_numeric(found, values):
            return replace(Number.of(name, found, standardise, decimal), unit=unit)
    written = date_format(known)
    if written is not None:
        return Date.of(name, days(values, written), standardise, written)
    words = np.mean([len(WORD.findall(value)) for value in as_text(known.head(1000))])
    if words >= 4 and distinct > max(_FEW, len(known) / 2):
        return Ignored(name, "text") if text is False else Text.of(name, values)
    if few:
        return Category.of(name, values)
    return Ignored(name, _unusable(known))


def counts_rows(values: pd.Series[Any]) -> bool:
    """Whether a column of numbers rises from row to row by whole numbers, as ids do."""
    steps = np.diff(numbers(values))
    return len(steps) >= _FEWEST and bool((steps >= 1).all() and (steps == steps.round()).all())


def _unusable(known: pd.Series[Any]) -> str:
    """Why nothing is made of a column with many different values, and what would help where something would."""
    texts = [text for text, number in zip(as_text(known), np.isfinite(numbers(known))) if not number]
    if all(map(_OTHER_DATE.fullmatch, texts)):
        return f"dates such as {texts[0]} in more than one format; write them as 2020-12-31 to use them"
    several = several_units(known)
    if several:
        return f"numbers in several units ({several}); write them in one unit to use them"
    if len(texts) < len(known) / 2:
        some = f"{len(texts)} of {len(known)} values are not numbers, such as {texts[0]!r}"
        return f"{some}; leave these cells empty to use the others"
    return f"{known.nunique()} different values in {len(known)} rows look like names or numbers of rows"


def _names_rows(known: pd.Series[Any]) -> bool:
    """Whether values could be names of rows: whole numbers or words, no measurements."""
    found = numbers(known)
    return not np.isfinite(found).all() or bool((found == found.round()).all())


def _codes(known: pd.Series[Any]) -> bool:
    """Whether values are codes, such as postcodes: digits of one length, some with a zero in front."""
    texts = known.unique()
    if not all(isinstance(text, str) and _DIGITS.fullmatch(text) for text in texts):
        return False
    return len({len(text) for text in texts}) == 1 and any(text[0] == "0" for text in texts)


def _plausible(known: pd.Series[Any]) -> bool:
    """Whether the first values let a column of numbers be expected."""
    sample = known.head(_SAMPLE)
    infinite = pd.to_numeric(sample, errors="coerce").notna().to_numpy()
    return bool((np.isfinite(read_numbers(sample)[0]) | infinite | placeholders(sample)).mean() >= _MOSTLY)


def _is_numeric(found: Vector, values: pd.Series[Any]) -> bool:
    """Whether all values are numbers, infinite or missing, or nearly all: a few words among many mean missing."""
    known = found[np.isfinite(found)]
    unread = ~np.isfinite(found) & values.notna().to_numpy() & ~placeholders(values)
    if len(known) == 0:
        return False
    if bool(pd.to_numeric(values[unread], errors="coerce").notna().all()):
        return True
    return len(known) >= _MOSTLY * (len(known) + unread.sum()) and len(np.unique(known)) > _FEW / 2
