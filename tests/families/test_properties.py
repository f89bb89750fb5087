"""Round trips hold over wide ranges of parameters, from any start."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families.cases import CASES, Draw
from posterity.families import Dirichlet, Gamma, Wishart

seeds = st.integers(0, 10_000)
spreads = st.floats(0.0, 2.0)
magnitudes = st.floats(-6.0, 6.0).map(lambda exponent: 10.0**exponent)
often = settings(max_examples=25, deadline=None, derandomize=True)


def relative(a, b) -> float:
    return max(((x - y).abs() / (1.0 + y.abs())).max().item() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", CASES)
@often
@given(seed=seeds, spread=spreads, other=seeds)
def test_round_trips(name, seed, spread, other):
    q, elsewhere = CASES[name].make(Draw(seed, spread), 2), CASES[name].make(Draw(other, spread), 2)
    assert relative(elsewhere.with_natural(q.natural).expectation, q.expectation) < 1e-9
    assert relative(elsewhere.with_expectation(q.expectation).expectation, q.expectation) < 1e-11
    assert (q.kl(elsewhere) >= -1e-11).all()


@often
@given(shape=magnitudes, rate=magnitudes, start=magnitudes)
def test_gamma_is_found_from_any_start(shape, rate, start):
    """Rounding in E[log θ] is amplified by the shape: that much error no algorithm can avoid."""
    q = Gamma(shape, rate)
    found = Gamma(start, 1.0).with_expectation(q.expectation)
    size = 1.0 + q.expectation[0].abs().item()
    assert found.shape.item() == pytest.approx(shape, rel=1e-14 * size * (1.0 + 10.0 * shape))


@often
@given(logarithms=st.lists(st.floats(-7.0, 7.0), min_size=2, max_size=6), start=magnitudes)
def test_dirichlet_is_found_from_any_start(logarithms, start):
    concentration = torch.tensor(logarithms, dtype=torch.float64).exp()
    q = Dirichlet(concentration)
    found = Dirichlet(torch.full_like(concentration, start)).with_expectation(q.expectation)
    assert relative(found.expectation, q.expectation) < 1e-13
    assert relative(Dirichlet.from_expectation(q.expectation).expectation, q.expectation) < 1e-13


@often
@given(dim=st.integers(1, 12), excess=magnitudes, start=magnitudes)
def test_wishart_is_found_from_any_start(dim, excess, start):
    eye = torch.eye(dim, dtype=torch.float64)
    q = Wishart(dim - 1.0 + excess, eye)
    found = Wishart(dim - 1.0 + start, eye).with_expectation(q.expectation)
    assert relative(found.expectation, q.expectation) < 1e-12
