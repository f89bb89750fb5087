"""Ids of examples: whole numbers without repetition, and their positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from posterity.errors import require


def unique(ids: Tensor) -> Tensor:
    """The ids, or an error if one comes twice."""
    known, counts = ids.unique(return_counts=True)
    twice = known[counts > 1]
    require(len(twice) == 0, "ids", "each only once", f"{twice[:1].tolist()} more than once")
    return ids


def as_ids(what: str, given: Iterable[int]) -> Tensor:
    """Ids given as a list, a set, an array or a column, in order; an error if they are anything but whole numbers.

    A mask would be taken for the ids 0 and 1.

    Examples:
        >>> as_ids("remove", {3, 1})
        tensor([1, 3])
        >>> as_ids("remove", [True, False])
        Traceback (most recent call last):
        posterity.errors.InvalidInput: remove: expected ids, whole numbers, got 'bool'
    """
    several = isinstance(given, Tensor | Iterable) and not isinstance(given, str)
    require(several, what, "a list of ids", given)
    return whole_numbers(what, given if isinstance(given, Tensor) else list(given)).unique()


def whole_numbers(what: str, given: Any) -> Tensor:
    """One id or several, unchanged; an error if they are not whole numbers."""
    ids = np.asarray(given.cpu() if isinstance(given, Tensor) else given).reshape(-1)
    require(len(ids) == 0 or ids.dtype.kind in "iu", what, "ids, whole numbers", ids.dtype.name)
    return torch.as_tensor(ids.astype(np.int64))


def places(known: pd.Index[Any], ids: Tensor) -> np.ndarray[Any, Any]:
    """The positions of these ids in a table: a loader may bring them in another order at every pass.

    Examples:
        >>> places(pd.Index([7, 5, 6]), torch.tensor([6, 7]))
        array([2, 0])
    """
    rows = known.get_indexer(pd.Index(ids.tolist()))
    require(bool((rows >= 0).all()), "data", "the same examples at every pass", "others")
    return rows
