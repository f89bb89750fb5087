"""Every identity of an exponential family, over every family of the table."""

from __future__ import annotations

from inspect import isabstract

import pytest
import torch
from torch import Tensor

from families.cases import CASES, Case, Draw
from posterity import families
from posterity.families import CoordinateFamily, Family

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=CASES, ids=str)
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture
def q(case) -> Family:
    return case.make(Draw(0))


def leaves(blocks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(block.detach().clone().requires_grad_() for block in blocks)


def assert_blocks(actual, wanted, **tolerance) -> None:
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or TIGHT))


def minimal(family: Family, blocks: tuple[Tensor, ...], double: bool) -> Tensor:
    """Blocks as one vector of minimal coordinates: matrices give their lower triangle.

    T and μ double what stands off the diagonal, λ and gradients do not, so that ⟨λ, T⟩ stays what it is.
    """
    pieces = []
    for block, dims in zip(blocks, family.event_dims, strict=True):
        if dims == 2:
            rows, columns = torch.tril_indices(*block.shape[-2:])
            factor = torch.where(rows == columns, 1.0, 2.0 if double else 1.0)
            pieces.append(block[..., rows, columns] * factor)
        else:
            pieces.append(block if dims else block.unsqueeze(-1))
    return torch.cat(pieces, -1)


def smooth(theta: Tensor) -> Tensor:
    """A loss that no family is conjugate to."""
    flat = theta.reshape(len(theta), -1)
    weights = torch.linspace(0.1, 0.5, flat.shape[-1], dtype=theta.dtype)
    return torch.cos(flat @ weights) + torch.sin(flat).sum(-1)


def test_every_public_family_is_in_the_table():
    public = {name for name in families.__all__ if isinstance(getattr(families, name), type)}
    concrete = {n for n in public if issubclass(getattr(families, n), Family) and not isabstract(getattr(families, n))}
    assert concrete == set(CASES)


def test_gradient_of_log_partition_is_expectation(case):
    q = case.make(Draw(1), 2)
    natural = leaves(q.natural)
    slopes = torch.autograd.grad(q.with_natural(natural).log_partition().sum(), natural)
    assert_blocks(slopes, q.expectation)


def test_round_trip_through_natural(case):
    q = case.make(Draw(2), 3)
    assert_blocks(q.with_natural(q.natural).natural, q.natural)


def test_round_trip_through_expectation(case):
    q, elsewhere = case.make(Draw(3), 3), case.make(Draw(4, spread=1.5), 3)
    assert_blocks(q.with_expectation(q.expectation).natural, q.natural)
    assert_blocks(elsewhere.with_expectation(q.expectation).natural, q.natural)
    if isinstance(q, CoordinateFamily):
        assert_blocks(type(q).from_natural(q.natural).natural, q.natural)
        assert_blocks(type(q).from_expectation(q.expectation).natural, q.natural)


def test_a_start_of_another_batch_is_no_start(case):
    q, elsewhere = case.make(Draw(3), 3), case.make(Draw(4), 2)
    if isinstance(q, CoordinateFamily):
        assert_blocks(elsewhere.with_expectation(q.expectation).natural, q.natural)


def test_log_prob_is_the_density_from_outside(case, q):
    theta = q.sample(20, torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), case.density(q, theta), rtol=1e-10, atol=1e-10)


def test_moments_entropy_and_kl_by_quadrature(case, q):
    p = q.with_natural(case.make(Draw(7)).natural)
    theta, weights = case.nodes(q)
    log_q = q.log_prob(theta)
    mass = weights * log_q.exp()

    def average(values: Tensor) -> Tensor:
        return torch.einsum("n,n...->...", mass, values)

    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    assert_blocks([mass.sum()], [torch.ones_like(mass.sum())], **tolerance)
    assert_blocks([average(t) for t in q.statistics(theta)], q.expectation, **tolerance)
    assert_blocks([average(theta)], [q.mean], **tolerance)
    assert_blocks([average((theta - q.mean) ** 2)], [q.variance], **tolerance)
    assert_blocks([average(q.log_base_measure(theta))], [q.expected_log_base_measure()], **tolerance)
    assert_blocks([-average(log_q)], [q.entropy()], **tolerance)
    assert_blocks([average(log_q - p.log_prob(theta))], [q.kl(p)], **tolerance)
    assert q.kl(q).abs() < 1e-13


def test_gradient_of_entropy(case):
    """∇_μ H = −λ − ∇_μ E[log h]."""
    q = case.make(Draw(5), 2)
    expectation = leaves(q.expectation)
    attached = sum(0.0 * block.sum() for block in expectation)  # with a fixed covariance the entropy is a constant
    slopes = torch.autograd.grad(q.with_expectation(expectation).entropy().sum() + attached, expectation)
    wanted = [-natural - base for natural, base in zip(q.natural, q.base_measure_gradient(), strict=True)]
    assert_blocks(slopes, wanted, rtol=1e-10, atol=1e-10)


def test_natural_gradient_is_gradient_in_expectation(case, q):
    """F(λ)⁻¹ ∇_λ E[f] = ∇_μ E[f], with F = Cov(T, T) and ∇_λ E[f] = Cov(T, f) by quadrature."""
    theta, weights = case.nodes(q)
    mass, losses = weights * q.log_prob(theta).exp(), smooth(theta)
    statistics = minimal(q, q.statistics(theta), double=True)
    centred = statistics - mass @ statistics
    fisher = torch.einsum("n,ni,nj->ij", mass, centred, centred)
    natural_gradient = torch.linalg.solve(fisher, (mass * losses) @ centred)

    expectation = leaves(q.expectation)
    average = (weights * q.with_expectation(expectation).log_prob(theta).exp()) @ losses
    gradient = minimal(q, torch.autograd.grad(average, expectation), double=False)
    torch.testing.assert_close(natural_gradient, gradient, rtol=1e-10, atol=1e-10)


def test_samples_have_the_moments(case):
    q = case.make(Draw(8), 2)
    n = 40_000
    theta = q.sample(n, torch.Generator().manual_seed(1))
    assert torch.equal(theta, q.sample(n, torch.Generator().manual_seed(1)))
    for drawn, wanted in [(theta, q.mean), *zip(q.statistics(theta), q.expectation, strict=True)]:
        error = (drawn.mean(0) - wanted).abs()
        assert (error <= 5.0 * drawn.std(0) / n**0.5 + 1e-12).all()
    torch.testing.assert_close(theta.var(0), q.variance, rtol=0.2, atol=0.0)


def test_batches_are_stacked_members(case):
    q = case.make(Draw(9), 2, 3)
    theta = q.sample(4, torch.Generator().manual_seed(2))
    values = (q.entropy(), q.kl(q), q.log_partition(), q.log_prob(theta)[0])
    assert [tuple(v.shape) for v in values] == [(2, 3)] * 4
    assert q.log_prob(theta).shape == (4, 2, 3)
    assert theta.shape[1:] == q.mean.shape == q.variance.shape
    last = case.make(Draw(9)).with_natural(tuple(block[1, 2] for block in q.natural))
    torch.testing.assert_close(q.entropy()[1, 2], last.entropy(), **TIGHT)
    torch.testing.assert_close(q.log_prob(theta)[3, 1, 2], last.log_prob(theta[3, 1, 2]), **TIGHT)


def test_single_precision_stays_single(case):
    q = case.make(Draw(10), 2)
    if isinstance(q, CoordinateFamily):
        single = q.from_expectation(tuple(block.float() for block in q.expectation))
        assert {block.dtype for block in (*single.natural, single.mean, single.entropy())} == {torch.float32}
        torch.testing.assert_close(single.entropy().double(), q.entropy(), rtol=1e-3, atol=1e-3)
