"""Symmetric matrices, held to numpy and to the plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from posterity import linalg
from posterity.errors import InvalidInput

matrices = hnp.arrays(np.float64, (4, 4), elements=st.floats(-3, 3))
steps = st.floats(0, 100)


def positive(values: np.ndarray) -> torch.Tensor:
    root = torch.from_numpy(values)
    return root @ root.T + 0.1 * torch.eye(4, dtype=torch.float64)


@settings(deadline=None)
@given(matrices, hnp.arrays(np.float64, 4, elements=st.floats(-3, 3)))
def test_factor_solve_inverse_determinant_against_numpy(values, b) -> None:
    S = positive(values)
    L = linalg.cholesky(S)
    np.testing.assert_allclose(linalg.solve_psd(L, torch.from_numpy(b)), np.linalg.solve(S, b), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(linalg.inverse_psd(S), np.linalg.inv(S), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(linalg.log_det_psd(L), np.linalg.slogdet(S)[1], rtol=1e-9, atol=1e-9)
    assert torch.equal(linalg.inverse_psd(S), linalg.inverse_psd(S).T)


@settings(deadline=None)
@given(matrices, matrices, steps)
def test_no_step_leaves_the_cone(values, direction, step) -> None:
    S, G = positive(values), linalg.symmetrise(torch.from_numpy(direction))
    moved = linalg.retract(S, G, step)
    formula = S + step * G + 0.5 * step**2 * G @ torch.linalg.inv(S) @ G
    torch.testing.assert_close(moved, formula, rtol=1e-6, atol=1e-6 * formula.abs().max().item())
    assert torch.equal(moved, moved.T)
    smallest = torch.linalg.eigvalsh(moved - 0.5 * S).min()
    assert smallest > -1e-9 * moved.abs().max(), "S/2 is a lower bound, so every step stays positive definite"


@given(
    hnp.arrays(np.float64, 5, elements=st.floats(0.01, 100)),
    hnp.arrays(np.float64, 5, elements=st.floats(-100, 100)),
    steps,
)
def test_the_diagonal_retraction_is_the_full_one(s, g, step) -> None:
    s, g = torch.from_numpy(s), torch.from_numpy(g)
    moved = linalg.retract_diagonal(s, g, step)
    torch.testing.assert_close(
        moved, linalg.retract(torch.diag(s), torch.diag(g), step).diagonal(), rtol=1e-8, atol=1e-8
    )
    assert (moved >= 0.5 * s * (1 - 1e-12)).all()


def test_batches_of_matrices() -> None:
    S = torch.stack([positive(np.eye(4)), positive(np.arange(16.0).reshape(4, 4))])
    G = torch.stack([torch.eye(4).double(), -torch.ones(4, 4).double()])
    moved = linalg.retract(S, G, 0.3)
    for i in range(2):
        torch.testing.assert_close(moved[i], linalg.retract(S[i], G[i], 0.3))
    torch.testing.assert_close(linalg.log_det_psd(linalg.cholesky(S)), torch.linalg.slogdet(S)[1])


def test_matrices_without_a_factor_are_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match="S: expected a positive-definite matrix, got smallest eigenvalue -1"):
        linalg.cholesky(torch.diag(torch.tensor([1.0, -1.0])), "S")
    with pytest.raises(InvalidInput, match="S: expected finite entries"):
        linalg.cholesky(torch.full((2, 2), float("nan")), "S")
    with pytest.raises(InvalidInput, match=r"S: expected single or double precision, got torch\.float16"):
        linalg.cholesky(torch.eye(2).half(), "S")


def test_roots_of_singular_matrices() -> None:
    columns = torch.randn(2, 4, 3, dtype=torch.float64)  # of rank 3
    root = linalg.root_psd(columns @ columns.mT)
    torch.testing.assert_close(root @ root.mT, columns @ columns.mT)
