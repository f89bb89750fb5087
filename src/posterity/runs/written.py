"""Numbers and dates in common spellings: currencies, thousands, percentages, decimal commas, US and European dates."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

Vector = np.ndarray[Any, np.dtype[np.float64]]

LARGEST = 1e150  # beyond it, squares are infinite; such numbers stand for missing ones
ISO = "ISO8601"
_MARK = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF)"
_AMOUNT = re.compile(
    rf"(\(?)\s*([-+−]?)\s*{_MARK}?\s*([-+−]?)\s*([\d.,'’\u00a0\u202f ]*\d[.,]?)\s*(%|{_MARK})?\s*(\)?)"
)
_PLACEHOLDERS = {"-", "--", "—", "–", ".", "*", "unknown", "missing", "not available", "tbd"}  # of missing numbers
_GROUPS = "'’\u00a0\u202f "  # what separates thousands, whatever the decimal sign
_SAMPLE = 1000  # values that a date format has to fit before it is tried on all of them
_ISO_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?")
_DATE_LIKE = re.compile(
    r"\d{1,4}([./-])\d{1,2}\1\d{1,4}.*|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}.*|[A-Za-z]{3,9} \d{1,2}, \d{4}.*"
)
# Of two that fit, the first is taken: with slashes and dashes the month comes first, as in the US.
_DAYS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d"),
    *("%d.%m.%Y", "%d.%m.%y", "%Y.%m.%d", "%m-%d-%Y", "%d-%m-%Y", "%m-%d-%y", "%d-%m-%y"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")


def numbers(values: pd.Series[Any], decimal: str = ".") -> Vector:
    """Values as numbers; NaN where they are none, or have no square.

    Plain numbers are read unchanged. Others may have a currency ("$1,234.00", "12 €"), thousands separated by
    commas, spaces or apostrophes, a percent sign ("5%" is 0.05) or brackets for a minus ("(12.50)").

    Args:
        values: Numbers, or text.
        decimal: The decimal sign of text, "." or ","; see `decimal_sign`.
    """
    texts = not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values))
    found = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    if texts:
        again = values.notna().to_numpy() & (np.isnan(found) if decimal == "." else np.ones(len(found), dtype=bool))
        if again.any():
            found[again] = _read(values[again], decimal)
    return np.where(np.abs(found) < LARGEST, found, np.nan)


def read_numbers(values: pd.Series[Any]) -> tuple[Vector, str]:
    """Values as numbers, and their decimal sign: "," where more of them are numbers that way ("1,5"), otherwise "."."""
    found = numbers(values)
    unread = np.isnan(found) & values.notna().to_numpy()
    if unread.any():
        other = numbers(values, ",")
        if np.isfinite(other).sum() > np.isfinite(found).sum():
            return other, ","
    return found, "."


def marked(values: pd.Series[Any]) -> bool:
    """Whether some numbers are written with more than digits, sign and point."""
    return bool((pd.to_numeric(values, errors="coerce").isna() & values.notna()).any())


def placeholders(values: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values are words or marks that people write where a number is missing."""
    return values.astype(str).str.strip().str.lower().isin(_PLACEHOLDERS).to_numpy()


def date_format(values: pd.Series[Any]) -> str | None:
    """The format that all known values share, None where there is none."""
    known = values[values.notna()]
    sample = known.head(_SAMPLE)
    if len(known) == 0:
        return None
    if np.isfinite(days(sample, ISO)).all():
        return ISO if np.isfinite(days(known, ISO)).all() else None
    if not _DATE_LIKE.fullmatch(str(sample.iloc[0]).strip()):
        return None
    for day, time in product(_DAYS, _TIMES):
        if all(np.isfinite(days(part, day + time)).all() for part in (sample.head(1), sample, known)):
            return day + time
    return None


def ambiguous(values: pd.Series[Any], written: str) -> bool:
    """Whether dates that are read with the month first could as well be read with the day first."""
    if not written.startswith("%m"):
        return False
    other = "%d" + written[2:].replace("%d", "%m")
    return bool(np.isfinite(days(values[values.notna()], other)).all())


def days(values: pd.Series[Any], written: str = ISO) -> Vector:
    """Days since 1970, NaN for what is not written in that format."""
    codes, different = pd.factorize(values)  # each different value is looked at once; missing ones are -1
    if pd.api.types.is_datetime64_any_dtype(values):
        parsed = pd.to_datetime(different, utc=True)
    else:
        texts = [str(value).strip() for value in different]
        dates = [text if written != ISO or _ISO_DATE.fullmatch(text) else None for text in texts]
        parsed = pd.DatetimeIndex(
            pd.to_datetime(pd.Series(dates, dtype=object), errors="coerce", utc=True, format=written)
        )
    found = np.asarray((parsed - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1), dtype=np.float64)
    return np.append(found, np.nan)[codes]


def _read(values: pd.Series[Any], decimal: str) -> Vector:
    """Texts as numbers, each different one once."""
    codes, different = pd.factorize(values)
    return np.array([_amount(str(text), decimal) for text in different], dtype=np.float64)[codes]


def _amount(text: str, decimal: str) -> float:
    """One written number, NaN where it is none."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        return _float(text) if decimal == "," else np.nan
    opening, sign, inner, body, unit, closing = found.groups()
    if bool(opening) != bool(closing) or (sign and inner):
        return np.nan
    value = _digits(body, decimal)
    negative = bool(opening) != (bool({sign, inner} & {"-", "−"}))
    return (-value if negative else value) / (100 if unit == "%" else 1)


def _digits(body: str, decimal: str) -> float:
    """Digits in groups of three, or without groups, and decimals behind the decimal sign."""
    thousands = "," if decimal == "." else "."
    whole, _, decimals = body.partition(decimal)
    if not whole.isdigit():
        for group in (thousands, *_GROUPS):
            first, *rest = whole.split(group)
            if rest and first[:1] != "0" and len(first) <= 3 and all(len(three) == 3 for three in rest):
                whole = whole.replace(group, "")
                break
    if all(part.isdigit() or not part for part in (whole, decimals)) and whole + decimals:
        return float(f"{whole or '0'}.{decimals}")
    return _float(body)


def _float(text: str) -> float:
    """A plain number, which both conventions allow."""
    try:
        return float(text) if re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", text.strip()) else np.nan
    except ValueError:
        return np.nan
