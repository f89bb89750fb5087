"""What all estimators share: data in from numpy or torch, numbers out to numpy, one source of randomness."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from posterity.errors import require
from posterity.families import NormalWishart


class BayesianEstimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator over tensors in float64."""

    def _tensor(self, X: Any, reset: bool = False, **checks: Any) -> Tensor:
        """The inputs, checked as scikit-learn does, as a tensor (n, d)."""
        return torch.as_tensor(validate_data(self, _numpy(X), reset=reset, dtype=np.float64, copy=True, **checks))

    def _tensors(self, X: Any, y: Any, reset: bool = False, **checks: Any) -> tuple[Tensor, np.ndarray]:
        """Inputs as a tensor (n, d), targets as scikit-learn leaves them."""
        X, y = validate_data(self, _numpy(X), _numpy(y), reset=reset, dtype=np.float64, copy=True, **checks)
        return torch.as_tensor(X), np.array(y)

    def _generator(self) -> torch.Generator:
        """Randomness from `random_state`."""
        return torch.Generator().manual_seed(self._seed())

    def _seed(self) -> int:
        return _drawn_seed(self.random_state)


def seed_of(random_state: Any) -> int:
    """The seed itself, or one drawn from scikit-learn's other kinds of random states."""
    return int(random_state) if isinstance(random_state, Integral) else _drawn_seed(random_state)


def _drawn_seed(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31 - 1))


def _numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def enough(X: Tensor, n: int, what: str) -> None:
    """Raise unless there are at least n rows."""
    require(len(X) >= n, f"n_samples={len(X)}", f"at least {n}, as many as {what}", len(X))


def moved(families: Mapping[str, Any], shift: Tensor) -> dict[str, Any]:
    """The same beliefs about data that are shifted by `shift`: only the locations of components notice."""
    return {
        name: NormalWishart(q.location + shift, q.strength, q.degrees, q.scale) if isinstance(q, NormalWishart) else q
        for name, q in families.items()
    }
