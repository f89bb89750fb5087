"""Parameters that cannot be right raise an error that names what was expected and what came."""

from __future__ import annotations

import pytest
import torch

from families.cases import CASES, Draw
from posterity.errors import InvalidInput
from posterity.families import (
    Bernoulli,
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    FixedGaussian,
    Gamma,
    Gaussian,
    InverseGamma,
    MixtureOfGaussians,
    NormalGamma,
    NormalWishart,
    Poisson,
    Product,
    SignBernoulli,
    UnitGamma,
    Wishart,
)

EYE = torch.eye(2, dtype=torch.float64)
FLAT = [[1.0, 2.0], [2.0, 1.0]]  # indefinite


def tensors(*values: float | list[float]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


CONSTRUCTORS = {
    "indefinite": (lambda: Gaussian([0.0, 0.0], FLAT), "precision: expected a positive-definite matrix, got .* -1"),
    "asymmetric": (lambda: Gaussian([0.0, 0.0], [[2.0, 1.0], [0.0, 2.0]]), "expected a symmetric matrix, .* by 1"),
    "wrong size": (lambda: Gaussian([0.0, 0.0, 0.0], EYE), r"expected a matrix \(3, 3\), got 'shape \(2, 2\)'"),
    "not a matrix": (lambda: Gaussian([0.0], [1.0]), "precision: expected at least 2 axes"),
    "nan mean": (lambda: Gaussian([0.0, float("nan")], EYE), "mean: expected finite entries, got 'NaN"),
    "batches": (lambda: Gaussian(torch.zeros(3, 2), EYE.expand(4, 2, 2)), "expected shapes that broadcast"),
    "fixed": (lambda: FixedGaussian([0.0, 0.0], FLAT), "precision: expected a positive-definite matrix"),
    "diagonal": (lambda: DiagonalGaussian([0.0, 0.0], [1.0, 0.0]), r"precision: expected .* \(0, inf\), got 0.0"),
    "diagonal size": (lambda: DiagonalGaussian([0.0] * 2, [1.0] * 3), "precision: expected 2 entries"),
    "scalar bits": (lambda: SignBernoulli(0.3), "half_log_odds: expected at least 1 axes"),
    "rate": (lambda: Poisson(-1.0), r"rate: expected .* \(0, inf\), got -1.0"),
    "shape": (lambda: Gamma(0.0, 1.0), r"shape: expected .* \(0, inf\), got 0.0"),
    "scale": (lambda: InverseGamma(1.0, -2.0), "scale: expected .* got -2.0"),
    "infinite": (lambda: UnitGamma(float("inf")), "shape: expected finite entries"),
    "beta": (lambda: Beta(1.0, -1.0), "b: expected .* got -1.0"),
    "one class": (lambda: Dirichlet([1.0]), "classes: expected at least 2, got 1"),
    "concentration": (lambda: Dirichlet([1.0, -1.0]), "concentration: expected .* got -1.0"),
    "degrees": (lambda: Wishart(1.0, EYE), r"degrees: expected .* \(1, inf\), got 1.0"),
    "wishart scale": (lambda: Wishart(4.0, FLAT), "scale: expected a positive-definite matrix"),
    "strength": (lambda: NormalGamma(0.0, 0.0, 1.0, 1.0), "strength: expected .* got 0.0"),
    "location": (lambda: NormalWishart([0.0] * 3, 1.0, 4.0, EYE), r"scale: expected a matrix \(3, 3\)"),
    "no factors": (lambda: Product(), "factors: expected at least one exponential family"),
    "factors": (lambda: Product(Poisson(1.0), Poisson([1.0, 2.0])), "expected one batch shape"),
    "factor": (lambda: Product(MixtureOfGaussians.of([1.0], [[0.0]], [[[1.0]]])), "at least one exponential family"),
    "no members": (lambda: Gamma(torch.ones(0), 1.0), r"batch: expected at least one member, got 'shape \(0,\)'"),
    "no dimension": (lambda: Gaussian(torch.zeros(0), torch.zeros(0, 0)), "precision: expected at least one dimension"),
    "one of two asymmetric": (
        lambda: Gaussian(torch.zeros(2, 2), torch.stack((1e9 * EYE, torch.tensor([[2.0, 1.0], [0.0, 2.0]])))),
        "expected a symmetric matrix, .* by 1",
    ),
    "complex": (lambda: Poisson(torch.tensor(1.0 + 1.0j)), "rate: expected real numbers, got torch.complex64"),
    "too many states": (lambda: SignBernoulli(torch.zeros(40)).support(), "bits: expected at most 20, .* got 40"),
    "text": (lambda: Gamma("two", 1.0), "shape: expected numbers, got 'two'"),
}

EXPECTATIONS = {
    "covariance": (Gaussian, (torch.ones(2), torch.zeros(2, 2)), "covariance .*positive-definite"),
    "variance": (DiagonalGaussian, tensors([2.0], [1.0]), "variance .* got -3.0"),
    "bit": (Bernoulli, tensors([1.0]), r"\(0, 1\), got 1.0"),
    "sign": (SignBernoulli, tensors([-1.5]), r"\(-1, 1\), got -1.5"),
    "classes": (Categorical, tensors([0.5, 0.6]), "probability of the last class"),
    "count": (Poisson, tensors(-0.5), "rate: expected"),
    "jensen": (Gamma, tensors(1.0, 1.0), "gap log .* got -1.0"),
    "inverse jensen": (InverseGamma, tensors(-1.0, 1.0), "gap log .* got -1.0"),
    "unit": (UnitGamma, tensors(-0.5), r"\(-inf, -1\), got -0.5"),
    "beta": (Beta, tensors(-0.1, -0.1), r"log\(exp.* \(-inf, 0\), got 0.593"),
    "simplex": (Dirichlet, tensors([-0.5, -0.5]), r"sum of exp.* \(-inf, 0\), got 0.193"),
    "log det": (Wishart, (torch.tensor(1.0), torch.eye(2)), "gap log det .* got -1.0"),
    "spread": (NormalGamma, tensors(-1.0, 1.0, 2.0, 3.0), r"expectation\[3\] .* got -1.0"),
    "quadratic": (
        NormalWishart,
        (torch.tensor(-1.0), torch.eye(1), torch.tensor([2.0]), torch.tensor(3.0)),
        r"expectation\[3\] .* got -1.0",
    ),
}


@pytest.mark.parametrize(("build", "message"), CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_constructor(build, message):
    with pytest.raises(InvalidInput, match=message):
        build()


@pytest.mark.parametrize(("family", "expectation", "message"), EXPECTATIONS.values(), ids=EXPECTATIONS)
def test_expectation_outside_its_domain(family, expectation, message):
    with pytest.raises(InvalidInput, match=message):
        family.from_expectation(expectation)


@pytest.mark.parametrize("name", CASES)
def test_coordinates_of_every_family(name):
    q = CASES[name].make(Draw(0))
    for build, blocks in ((q.with_natural, q.natural), (q.with_expectation, q.expectation)):
        with pytest.raises(InvalidInput, match="a tuple of"):
            build((*blocks, blocks[0]))
        for i in range(len(blocks)):
            with pytest.raises(InvalidInput, match="finite"):
                build((*blocks[:i], torch.full_like(blocks[i], torch.nan), *blocks[i + 1 :]))


@pytest.mark.parametrize("name", ["Gaussian", "DiagonalGaussian", "Wishart", "NormalWishart"])
def test_flipped_sign_of_the_quadratic_block(name):
    q = CASES[name].make(Draw(1))
    with pytest.raises(InvalidInput, match="expected"):
        q.with_natural((q.natural[0], -q.natural[1], *q.natural[2:]))


def test_kl_between_strangers():
    with pytest.raises(InvalidInput, match="kl: expected another Gaussian"):
        Gaussian.standard(2).kl(Gaussian.standard(3))
    with pytest.raises(InvalidInput, match="kl: expected another Gamma"):
        Gamma(1.0, 1.0).kl(Poisson(1.0))
    with pytest.raises(InvalidInput, match="constants"):
        FixedGaussian([0.0], [[1.0]]).kl(FixedGaussian([0.0], [[2.0]]))
    with pytest.raises(InvalidInput, match="kl"):
        Product(Poisson(1.0)).kl(Product(Gamma(1.0, 1.0)))
