"""Sites: adding and removing data as arithmetic on natural parameters, held to closed-form regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from posterior import cases
from posterity.errors import InvalidInput, Undefined
from posterity.posterior import Diagonal, Full, LastLayer, Posterior, Site
from posterity.trees import from_vector, to_vector

LIKE = {"w": torch.zeros(2, 2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
numbers = hnp.arrays(np.float64, 5, elements=st.floats(-5, 5, width=32))
positive = hnp.arrays(np.float64, 5, elements=st.floats(0.125, 8, width=32))


def tree(values: np.ndarray):
    return from_vector(torch.from_numpy(values), LIKE)


def gaussian(mean: np.ndarray, scale: np.ndarray, dense: bool) -> Diagonal | Full:
    if not dense:
        return Diagonal(tree(mean), tree(scale))
    root = torch.from_numpy(np.outer(scale, np.sin(scale + np.arange(5))))
    return Full(tree(mean), root @ root.T + torch.diag(torch.from_numpy(scale)))


def posterior(structure: Diagonal | Full, n: int = 20, ess: float = 40.0) -> Posterior:
    return Posterior(structure, prior=Diagonal.isotropic(LIKE, 0.1), n=n, ess=ess, likelihood="gaussian")


def close(a, b, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(to_vector(a.mean), to_vector(b.mean), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.precision_matrix(), b.precision_matrix(), rtol=tolerance, atol=tolerance)


@settings(max_examples=50, deadline=None)
@given(numbers, positive, numbers, positive, st.booleans(), st.booleans())
def test_adding_then_removing_is_the_identity(m, p, b, a, dense, dense_site) -> None:
    q = posterior(gaussian(m, p, dense))
    site = posterior(gaussian(b, a, dense_site)).natural()
    back = (q + site) - site
    close(back.structure, q.structure)
    assert (back.n, back.ess) == (q.n, pytest.approx(q.ess))


@settings(max_examples=50, deadline=None)
@given(numbers, positive, numbers, positive, st.booleans())
def test_what_the_data_added_leads_from_prior_to_posterior(m, p, m0, p0, dense) -> None:
    q, prior = posterior(gaussian(m, p, dense)), gaussian(m0, p0, False)
    site = q - prior
    close(prior + site, q.structure)
    close(q.structure - site, prior)
    assert (site.n, site.ess) == (q.n, q.ess)


@settings(max_examples=30, deadline=None)
@given(positive, positive, positive, positive, st.floats(0.25, 4))
def test_sites_are_a_vector_space(a, b, c, d, factor) -> None:
    one, two = Site(tree(a), tree(b), 3, 3), Site(tree(c), tree(d), 4, 8)
    prior = gaussian(np.zeros(5), np.full(5, 1.0), False)
    close(prior + (one + two).scaled(factor), prior + two.scaled(factor) + one.scaled(factor))
    close(prior + (one - two + two), prior + one)
    assert ((one - two).n, (one - two).ess) == (-1, -5)
    assert two.scaled(0.5).ess == 4


def test_regression_data_as_sites_against_the_closed_form() -> None:
    """With y = Xθ + noise, the site of (X, y) is (βXᵀy, βXᵀX): any order, any removal is exact."""
    rng = np.random.default_rng(0)
    X, y, beta, delta = rng.normal(size=(30, 5)), rng.normal(size=30), 2.5, 0.1

    def site(rows: slice) -> Site:
        A, b = beta * X[rows].T @ X[rows], beta * X[rows].T @ y[rows]
        count = len(y[rows])
        return Site(tree(b), torch.from_numpy(A), count, count)

    def exact(rows: slice) -> Full:
        precision = beta * X[rows].T @ X[rows] + delta * np.eye(5)
        return Full(tree(np.linalg.solve(precision, beta * X[rows].T @ y[rows])), torch.from_numpy(precision))

    prior = Diagonal.isotropic(LIKE, delta)
    everything = prior + site(slice(20, 30)) + site(slice(0, 20))
    close(everything, exact(slice(0, 30)), 1e-10)
    q = Posterior(everything, prior=prior, n=30, ess=30, likelihood="gaussian")
    fewer = q - site(slice(0, 12))
    close(fewer.structure, exact(slice(12, 30)), 1e-9)
    assert (fewer.n, fewer.ess) == (18, 18)
    torch.testing.assert_close((q - prior).precision, torch.from_numpy(beta * X.T @ X))


def test_posteriors_differ_by_a_site() -> None:
    first, second = cases.posterior(cases.diagonal(0), n=10, ess=10), cases.posterior(cases.full(1), n=30, ess=60)
    moved = first + (second - first)
    close(moved.structure, second.structure)
    assert (moved.n, moved.ess) == (30, 60.0)


def test_last_layers_keep_what_is_below_them() -> None:
    q = cases.posterior(cases.last_layer())
    site = q - q.prior
    assert list(site.linear) == ["4.weight", "4.bias"]
    more = q + site
    assert isinstance(more.structure, LastLayer)
    assert torch.equal(more.mean["0.weight"], q.mean["0.weight"])
    close((more - site).structure.inner, q.structure.inner)


def test_dense_sites_in_another_order_of_names_add_up() -> None:
    q = gaussian(np.arange(5.0), np.arange(1.0, 6.0), True)
    turned = Full({"b": q.mean["b"], "w": q.mean["w"]}, q.precision.roll((1, 1), (0, 1)))
    close((posterior(q) + posterior(turned).natural()).structure, Full(q.mean, 2 * q.precision))


@pytest.mark.parametrize("name", ["kronecker", "low_rank"])
def test_structures_that_do_not_add_up_are_projected_first(name: str) -> None:
    q = cases.posterior(cases.GAUSSIANS[name]())
    with pytest.raises(Undefined, match="project it to 'diagonal' or 'full' first"):
        q - q.prior
    for to in ("diagonal", "full"):
        site = q.project(to) - q.prior
        close(q.prior + site, q.project(to).structure)


@pytest.mark.parametrize("name", list(cases.GAUSSIANS))
def test_projection_keeps_the_diagonal_of_the_precision(name: str) -> None:
    q = cases.posterior(cases.GAUSSIANS[name]())
    dense = torch.linalg.inv(q.structure.covariance_matrix())
    flat = q.project("diagonal")
    torch.testing.assert_close(to_vector(flat.structure.precision), dense.diagonal(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.project("full").structure.precision, dense, rtol=1e-8, atol=1e-8)
    assert (flat.n, flat.ess, flat.class_names) == (q.n, q.ess, q.class_names)


def test_projection_of_last_layers_and_of_points() -> None:
    q = cases.posterior(cases.last_layer()).project("diagonal")
    assert isinstance(q.structure, LastLayer)
    assert isinstance(q.structure.inner, Diagonal)
    with pytest.raises(Undefined, match="projection to 'full': not defined for the structure 'ensemble'"):
        cases.posterior(cases.ensemble()).project("full")
    with pytest.raises(InvalidInput, match="expected 'diagonal' or 'full', got 'banded'"):
        q.project("banded")


def test_removing_more_than_was_there_is_refused() -> None:
    q = posterior(gaussian(np.zeros(5), np.ones(5), False))
    with pytest.raises(InvalidInput, match="precision of 'w': expected a positive sum of sites, got -1"):
        q - Site(tree(np.zeros(5)), tree(np.full(5, 2.0)))
    dense = posterior(gaussian(np.zeros(5), np.ones(5), True))
    with pytest.raises(InvalidInput, match="positive-definite"):
        dense - Site(tree(np.zeros(5)), torch.eye(5, dtype=torch.float64) * 9)
    with pytest.raises(InvalidInput, match="at least one example left"):
        q - Site(tree(np.zeros(5)), tree(np.full(5, 0.5)), n=20)


def test_sites_of_other_parameters_are_refused() -> None:
    q = posterior(gaussian(np.zeros(5), np.ones(5), False))
    with pytest.raises(InvalidInput, match="site: expected a tensor for parameter 'w'"):
        q + Site({"v": torch.zeros(2)}, {"v": torch.zeros(2)})
    with pytest.raises(InvalidInput, match=r"site precision: expected shape \(5, 5\)"):
        Site(tree(np.zeros(5)), torch.eye(4))
    with pytest.raises(InvalidInput, match="site precision of 'w': expected shape"):
        Site({"w": torch.zeros(3)}, {"w": torch.zeros(1)})  # which would broadcast
    with pytest.raises(TypeError):
        q + 3
    assert repr(q.natural()) == "Site(diagonal, 2 tensors, n=20, ess=40)"
