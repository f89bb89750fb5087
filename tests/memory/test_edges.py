"""Edges of the memory: ties, groups without a push, few iterations, several outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from memory.problems import diabetes, linear, ridge
from posterity.errors import InvalidInput
from posterity.likelihoods import CategoricalLikelihood, GaussianLikelihood
from posterity.memory import MemoryTracker, dual, leave_one_out
from posterity.memory.groups import Part, conjugate_gradients, shift
from posterity.memory.leave_one_out import LeaveOneOut
from posterity.memory.perturbation import change_of_outputs
from posterity.memory.tracker import _scores

X, Y = diabetes()


def test_a_tie_is_no_right_answer():
    f, y = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 0])
    found = _scores(CategoricalLikelihood(), f, y, torch.zeros(2, 3), torch.zeros(2, 3))
    assert found["margin"].tolist() == [0.0, 1.0]
    assert found["correctness"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("deflate", [False, True])
def test_a_group_without_a_push_moves_nothing(deflate):
    model = linear(ridge(X, Y, 1.0))
    posterior = po.laplace(model, (X, Y), structure="full", prior_precision=1.0, noise_precision=1.0)
    d = dual(model, posterior, (X, Y))
    part = Part(X[:5], torch.zeros_like(d.residual[:5]), d.curvature[:5], d.curvature[:5])
    found = shift(d.trained, [part], deflate=deflate)
    assert (found.parameters["weight"] == 0).all()
    assert found.leverage == 0


def test_conjugate_gradients_stop_after_so_many_steps():
    """One step goes gᵀΣg / gᵀΣ(Σ⁻¹ − G)Σg along Σg."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    sigma, lost = root @ root.mT + torch.eye(4), 0.01 * torch.eye(4, dtype=torch.float64)
    g = torch.randn(4, generator=generator, dtype=torch.float64)
    found = conjugate_gradients(lambda x: sigma @ x, lambda x: lost @ x, g, steps=1)
    p = sigma @ g
    torch.testing.assert_close(found.x, (g @ p) / (p @ (g - lost @ p)) * p)
    assert not found.converged
    assert conjugate_gradients(lambda x: sigma @ x, lambda x: lost @ x, g).converged


def test_the_predictive_of_several_outputs_is_a_gaussian_with_correlations():
    generator = torch.Generator().manual_seed(1)
    targets, outputs = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    root = torch.randn(6, 3, 3, generator=generator, dtype=torch.float64)
    found = LeaveOneOut(torch.arange(6), targets, outputs, root @ root.mT, GaussianLikelihood(4.0), None)
    law = MultivariateNormal(outputs, root @ root.mT + torch.eye(3, dtype=torch.float64) / 4.0)
    torch.testing.assert_close(found.predictive_nll, -law.log_prob(targets))


def test_a_notebook_shows_ten_rows():
    model = linear(ridge(X, Y, 1.0))
    posterior = po.laplace(model, (X, Y), structure="full", prior_precision=1.0, noise_precision=1.0)
    m = po.memory_map(model, posterior, (X, Y))
    assert m._repr_html_().count("<tr") == 11  # one of them names the columns
    assert "trust: sizes and rankings" in m._repr_html_()
    assert np.allclose(m.table["label"], Y[:, 0])


def test_each_example_loses_its_own_share_of_curvature():
    generator = torch.Generator().manual_seed(2)
    roots = 0.5 * torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    variance, curvature = roots @ roots.mT
    push, lost = torch.randn(3, 2, generator=generator, dtype=torch.float64), torch.tensor([0.2, 0.5, 1.0])
    found = change_of_outputs(variance, curvature, push, lost, deflate=True)
    for v, c, p, share, change in zip(variance, curvature, push, lost.tolist(), found, strict=True):
        torch.testing.assert_close(change - share * v @ c @ change, v @ p)


def test_an_id_that_occurs_twice_is_refused():
    model = linear(ridge(X, Y, 1.0))
    posterior = po.laplace(model, (X, Y), structure="full", prior_precision=1.0, noise_precision=1.0)
    rows = DataLoader(TensorDataset(X, Y, torch.arange(len(X)) // 2), batch_size=64)
    with pytest.raises(InvalidInput, match="ids"):
        leave_one_out(model, posterior, rows)


def test_a_tracker_knows_nobody_before_its_first_snapshot():
    assert len(MemoryTracker(linear(ridge(X, Y, 1.0)), None, (X, Y), likelihood="gaussian").ids) == 0
