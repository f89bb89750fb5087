"""Likelihoods: losses held to torch.distributions, derivatives to autograd, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, Poisson, StudentT

from posterity.errors import InvalidInput
from posterity.likelihoods import Likelihood, classes_last, likelihood

F = 2.0 * torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CASES = {
    "gaussian": (likelihood("gaussian", precision=2.5), F.flip(0), lambda f: Normal(f, 2.5**-0.5)),
    "bernoulli": (likelihood("bernoulli"), (F.flip(0) > 0).double(), lambda f: Bernoulli(logits=f)),
    "categorical": (likelihood("categorical"), torch.tensor([0, 1, 2, 0, 1, 2, 2]), lambda f: Categorical(logits=f)),
    "poisson": (likelihood("poisson"), torch.arange(21.0).reshape(7, 3).double(), lambda f: Poisson(f.exp())),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest):
    return CASES[request.param]


def test_losses_are_the_negative_log_likelihood(case) -> None:
    lik, y, reference = case
    exact = -reference(F).log_prob(y)
    exact = exact if exact.ndim == 1 else exact.sum(-1)
    torch.testing.assert_close(lik.loss(F, y), exact, rtol=1e-12, atol=1e-12)


def test_residual_and_curvature_are_the_derivatives(case) -> None:
    lik, y, _ = case
    for i in range(len(F)):
        gradient = torch.func.grad(lambda f: lik.loss(f, y[i]))(F[i])
        hessian = torch.autograd.functional.hessian(lambda f: lik.loss(f, y[i]), F[i])
        torch.testing.assert_close(lik.residual(F[i], y[i]), gradient, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(lik.curvature(F[i]), hessian, rtol=1e-10, atol=1e-10)
    root = lik.curvature_root(F)
    torch.testing.assert_close(root @ root.mT, lik.curvature(F), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lik.total_curvature(F), lik.curvature(F).sum(0), rtol=1e-10, atol=1e-10)


def test_means_and_draws(case) -> None:
    lik, _, reference = case
    mean = reference(F).probs if lik.name == "categorical" else reference(F).mean
    torch.testing.assert_close(lik.mean(F), mean)
    draws = lik.sample(F.expand(4000, 7, 3), torch.Generator().manual_seed(0))
    if lik.name == "categorical":
        draws = torch.nn.functional.one_hot(draws, 3).double()
    spread = lik.curvature(F).diagonal(dim1=-2, dim2=-1)  # the variance of y, up to the Gaussian's precision²
    if lik.name == "gaussian":
        spread = spread / 2.5**2
    assert (((draws.mean(0) - mean) / (spread / 4000).sqrt()).abs() < 5).all()


def test_settings_build_it_again(case) -> None:
    lik, _, _ = case
    assert likelihood(**lik.settings()) == lik
    assert likelihood(lik) is lik


def test_class_probabilities_as_targets() -> None:
    lik = likelihood("categorical")
    y = torch.softmax(F.flip(0), -1)
    torch.testing.assert_close(lik.loss(F, y), torch.nn.functional.cross_entropy(F, y, reduction="none"))
    gradient = torch.func.grad(lambda f: lik.loss(f, y).sum())(F)
    torch.testing.assert_close(lik.residual(F, y), gradient)
    lik.check(F, y)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    lik, y, _ = CASES["categorical"]
    torch.testing.assert_close(lik.loss(F, y.to(dtype)), lik.loss(F, y))
    torch.testing.assert_close(lik.residual(F, y.to(dtype)), lik.residual(F, y))


@pytest.mark.parametrize("name", ["bernoulli", "poisson"])
def test_zeros_and_ones_may_be_truth_values(name: str) -> None:
    lik, y = likelihood(name), CASES["bernoulli"][1]
    lik.check(F, y.bool())
    torch.testing.assert_close(lik.residual(F, y.bool()), lik.residual(F, y))
    torch.testing.assert_close(lik.loss(F, y.bool()), lik.loss(F, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "student_t"])
def test_draws_have_the_precision_of_the_outputs(name: str, dtype: torch.dtype) -> None:
    drawn = likelihood(name).sample(F.to(dtype))
    assert (drawn.shape, drawn.dtype) == (F.shape, dtype)
    assert drawn.isfinite().all()


def test_extreme_logits_stay_finite() -> None:
    f = torch.tensor([[800.0, -800.0, 0.0]], dtype=torch.float64)
    for lik, y in (
        (likelihood("categorical"), torch.tensor([1])),
        (likelihood("bernoulli"), torch.tensor([[0.0, 1, 1]])),
    ):
        assert torch.isfinite(lik.loss(f, y)).all()
        assert torch.isfinite(lik.residual(f, y)).all()
        assert torch.isfinite(lik.curvature_root(f)).all()


@pytest.mark.parametrize(
    ("lik", "f", "y", "message"),
    [
        (
            "gaussian",
            torch.zeros(2, 1),
            torch.zeros(2),
            r"targets: expected shape \(2, 1\) like the outputs, got \(2,\); give targets.unsqueeze\(1\)$",
        ),
        ("gaussian", torch.zeros(2, 3), torch.zeros(2), r"like the outputs, got \(2,\)$"),
        ("gaussian", torch.zeros(2, 1), torch.tensor([[0.0], [float("nan")]]), "targets: expected finite numbers"),
        ("gaussian", torch.zeros(2, 1), torch.ones(2, 1).bool(), "targets: expected numbers, got 'truth values'"),
        ("student_t", torch.zeros(2, 1), torch.ones(2, 1).bool(), "targets: expected numbers, got 'truth values'"),
        ("bernoulli", torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), r"values in \[0, 1\], got 'values from 0 to 2'"),
        ("bernoulli", torch.zeros(2, 1), torch.zeros(2), r"like the logits, got \(2,\); give targets.unsqueeze\(1\)$"),
        ("categorical", torch.zeros(2, 3), torch.tensor([0, 3]), "labels: expected integers in 0..2"),
        ("categorical", torch.zeros(2, 3), torch.tensor([-1, 0]), "labels: expected integers in 0..2"),
        ("categorical", torch.zeros(2, 3), torch.tensor([[0], [1]]), r"labels: expected shape \(2,\)"),
        (
            "categorical",
            torch.zeros(2, 3),
            torch.zeros(2),
            r"class labels as integers \(targets.long\(\)\), got .labels as torch",
        ),
        ("categorical", torch.zeros(2, 3), torch.ones(2, 3), "class probabilities: expected rows that sum to one"),
        ("categorical", torch.zeros(2, 1), torch.tensor([0, 0]), "one logit for each of at least 2 classes"),
        ("poisson", torch.zeros(2, 1), torch.tensor([[0.5], [1.0]]), "counts: expected whole numbers >= 0"),
        ("poisson", torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]]), "counts: expected whole numbers >= 0"),
    ],
)
def test_targets_that_do_not_fit_are_refused(lik: str, f: torch.Tensor, y: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        likelihood(lik).check(f, y)


def test_targets_that_fit_pass(case) -> None:
    lik, y, _ = case
    lik.check(F, y)


def test_unknown_likelihoods_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"likelihood: expected one of .*, got 'cauchy'"):
        likelihood("cauchy")
    with pytest.raises(InvalidInput, match="precision: expected a positive finite number, got 0"):
        likelihood("gaussian", precision=0)
    assert isinstance(likelihood("poisson"), Likelihood)


def test_classes_last() -> None:
    assert classes_last(torch.zeros(2, 5, 7, 8)).shape == (2, 7, 8, 5)
    assert classes_last(torch.zeros(2, 7, 5)).shape == (2, 7, 5)
    assert classes_last(torch.zeros(2, 5, 7), axis=1).shape == (2, 7, 5)


def test_student_t_forgives_large_errors() -> None:
    lik, y = likelihood("student_t", degrees=3.0, scale=0.7), F.flip(0)
    exact = -StudentT(3.0, F, 0.7).log_prob(y).sum(-1)
    torch.testing.assert_close(lik.loss(F, y), exact, rtol=1e-12, atol=1e-12)
    for i in range(len(F)):
        gradient = torch.func.grad(lambda f: lik.loss(f, y[i]))(F[i])
        hessian = torch.autograd.functional.hessian(lambda f: lik.loss(f, y[i]), F[i])
        torch.testing.assert_close(lik.residual(F[i], y[i]), gradient, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(lik.hessian(F[i], y[i]), hessian, rtol=1e-10, atol=1e-10)
    assert (lik.hessian(F, y).diagonal(dim1=-2, dim2=-1) < 0).any()  # not convex
    zeros = torch.zeros(200_000, 1, dtype=torch.float64)
    draws = lik.sample(zeros, torch.Generator().manual_seed(0))
    information = lik.residual(zeros, draws).square().mean()  # E[g²], the Fisher information
    torch.testing.assert_close(information, lik.curvature(zeros)[0, 0, 0], rtol=0.02, atol=0.0)
    assert likelihood(**lik.settings()) == lik
    with pytest.raises(InvalidInput, match="degrees: expected a positive"):
        likelihood("student_t", degrees=0)


def test_whole_counts_keep_the_digits_of_the_outputs() -> None:
    f, counts = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[30]])
    exact = -Poisson(torch.ones(1).double()).log_prob(counts.double())
    torch.testing.assert_close(likelihood("poisson").loss(f, counts), exact[0], rtol=1e-14, atol=0.0)


def test_nearly_certain_classes_have_a_curvature_in_single_precision() -> None:
    lik, f = likelihood("categorical"), torch.tensor([[20.0, 0.0, -1.0], [0.0, 30.0, 0.0]])
    exact = lik.curvature_root(f.double()) @ lik.curvature_root(f.double()).mT
    torch.testing.assert_close(lik.curvature(f).double(), exact, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(lik.total_curvature(f).double(), exact.sum(0), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("name", ["bernoulli", "categorical"])
def test_roots_of_vanishing_curvatures_have_a_slope(name) -> None:
    f = torch.tensor([[0.0, 2000.0]], requires_grad=True)
    likelihood(name).curvature_root(f).sum().backward()
    assert f.grad is not None
    assert f.grad.tolist() == [[0.0, 0.0]]


def test_infinite_counts_and_settings_that_would_be_lost_are_refused() -> None:
    with pytest.raises(InvalidInput, match="whole numbers"):
        likelihood("poisson").check(torch.zeros(1, 1), torch.tensor([[torch.inf]]))
    with pytest.raises(InvalidInput, match="settings"):
        likelihood(likelihood("gaussian"), precision=4.0)
