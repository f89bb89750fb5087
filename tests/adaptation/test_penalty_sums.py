"""Penalties add up only beside the same task loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as po
from posterity.adaptation import Quadratic
from posterity.posterior import Diagonal


def test_penalties_beside_different_means_do_not_add():
    model = nn.Linear(2, 1, bias=False)
    one = Quadratic(Diagonal({"weight": model.weight + 1.0}, {"weight": torch.tensor(4.0)}))
    assert (one.over(8) + 2.0 * one.over(8)).penalty(model).item() == pytest.approx(1.5)
    with pytest.raises(po.PosterityError, match="the same n"):
        one + one.over(8)
