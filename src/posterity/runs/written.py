"""Numbers and dates in common spellings: currencies, units, thousands, percentages, decimal commas, dates."""

from __future__ import annotations

import re
from collections import Counter
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
_MEASURE = re.compile(r"[-+−]?\s*((?!0\d)[\d.,'’\u00a0\u202f ]*\d)\s*([^\W\d_]\S{0,11}(?: \S{1,11})?|[°\"″′]\S{0,3})")
_EXPONENT = re.compile(r"[eE][-+]?\d.*")  # of a number such as 1e308, which is too large to be read; no unit
_SHARED = 0.95  # share of values that have the unit of a column
_MOST_UNITS = 4  # of a column of numbers; one with more holds names
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


def numbers(values: pd.Series[Any], decimal: str = ".", unit: str = "") -> Vector:
    """Values as numbers; NaN where they are none, or have no square.

    Plain numbers are read unchanged. Others may have a currency ("$1,234.00", "12 €"), thousands separated by
    commas, spaces or apostrophes, a percent sign ("5%" is 0.05) or brackets for a minus ("(12.50)").

    Args:
        values: Numbers, or text.
        decimal: The decimal sign of text, "." or ",".
        unit: What may stand behind each number ("12 kg"), in singular or plural.
    """
    texts = not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values))
    found = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    if texts:
        again = values.notna().to_numpy() & (np.isnan(found) if decimal == "." else np.ones(len(found), dtype=bool))
        if again.any():
            found[again] = _read(values[again], decimal, unit)
    return np.where(np.abs(found) < LARGEST, found, np.nan)


def read_numbers(values: pd.Series[Any]) -> tuple[Vector, str, str]:
    """Values as numbers, their decimal sign and their unit, "" where they have none.

    The sign is "," where more values are numbers that way ("1,5"), otherwise "."; the unit is one that they share.
    """
    found, decimal, unit = numbers(values), ".", ""
    unread = np.isnan(found) & values.notna().to_numpy()
    if unread.sum() > len(found) / 2:
        unit = shared_unit(values)
    if unread.any():
        ways = [numbers(values, sign, unit) for sign in ".,"]
        counts = [np.isfinite(way).sum() for way in ways]
        found, decimal = (ways[1], ",") if counts[1] > counts[0] else (ways[0], ".")
    return found, decimal, unit


def units(values: pd.Series[Any]) -> list[str]:
    """Units of a column of numbers that all have one, the commonest first; none where some values are no numbers.

    Examples:
        >>> units(pd.Series(["500 g", "1.5 kg", "2 kg", None])), units(pd.Series(["12 kg", "red"]))
        (['kg', 'g'], [])
    """
    known = values[values.notna()]
    found = [_MEASURE.fullmatch(str(text).strip()) for text in known[~placeholders(known)].head(_SAMPLE)]
    counts = Counter(_singular(match[2]) for match in found if match is not None and not _EXPONENT.fullmatch(match[2]))
    return [unit for unit, _ in counts.most_common()] if counts.total() >= _SHARED * len(found) else []


def several_units(values: pd.Series[Any]) -> str:
    """The units of a column of numbers in a few different ones, with commas; "" for any other column."""
    found = units(values)
    return ", ".join(found) if 2 <= len(found) <= _MOST_UNITS else ""


def shared_unit(values: pd.Series[Any]) -> str:
    """The unit behind nearly all numbers of a column, "" where there is none.

    Examples:
        >>> shared_unit(pd.Series(["70,5 m²", "80 m²"])), shared_unit(pd.Series(["1 year", "2 years"]))
        ('m²', 'year')
        >>> shared_unit(pd.Series(["500 g", "1.5 kg"]))
        ''
    """
    known = values[values.notna()].head(_SAMPLE)
    for unit in units(known)[:1]:
        same = [_singular(match[2]) == unit for text in known if (match := _MEASURE.fullmatch(str(text).strip()))]
        return unit if np.mean(same) >= _SHARED else ""
    return ""


def spelling(name: str, decimal: str, unit: str) -> str | None:
    """A note on how a column of numbers is read, where that is not obvious."""
    unit = f"numbers are read without their unit, {unit}" if unit else ""
    commas = "commas are read as decimal signs" if decimal == "," else ""
    return f"{name}: {'; '.join(part for part in (unit, commas) if part)}" if unit or commas else None


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


def _read(values: pd.Series[Any], decimal: str, unit: str) -> Vector:
    """Texts as numbers, each different one once."""
    codes, different = pd.factorize(values)
    texts = [_without(str(text).strip(), unit) for text in different]
    return np.array([_amount(text, decimal) for text in texts], dtype=np.float64)[codes]


def _without(text: str, unit: str) -> str:
    """A text without its unit, if it has that one."""
    match = _MEASURE.fullmatch(text) if unit else None
    return text[: match.start(2)].strip() if match is not None and _singular(match[2]) == unit else text


def _singular(unit: str) -> str:
    """A unit in words without the s of a plural."""
    return unit[:-1] if len(unit) > 3 and unit.endswith("s") else unit


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
