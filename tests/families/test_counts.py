"""Entropies and divergences of gammas and Dirichlets at any size of their counts, beside arithmetic of 60 digits."""

import math

import mpmath
import pytest
import torch

from posterity.families import Beta, Dirichlet, Gamma, InverseGamma, NormalGamma
from posterity.families.gamma import UnitGamma

SIZES = [1e-10, 1e-3, 0.5, 3.0, 15.99, 16.01, 1e3, 1e6, 1e9, 1e12]
FACTORS = [1.0 + 1e-6, 0.7, 1e3]


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(60):
        yield


def close(ours, exact, rounding=0.0):
    """To the last digits, of the answer or of what the rounding of counts so large does to it."""
    assert float(ours) == pytest.approx(float(exact), rel=1e-12, abs=1e-12 + rounding)


def gamma_entropy(a, b):
    a = mpmath.mpf(a)
    return a - mpmath.log(b) + mpmath.loggamma(a) + (1 - a) * mpmath.digamma(a)


def gamma_kl(a, b, c, d):
    a, b, c, d = map(mpmath.mpf, (a, b, c, d))
    shapes = (a - c) * mpmath.digamma(a) - mpmath.loggamma(a) + mpmath.loggamma(c)
    return shapes + c * mpmath.log(b / d) + a * (d - b) / b


def dirichlet_entropy(alpha):
    alpha = list(map(mpmath.mpf, alpha))
    total = mpmath.fsum(alpha)
    partition = mpmath.fsum(map(mpmath.loggamma, alpha)) - mpmath.loggamma(total)
    pulls = mpmath.fsum((a - 1) * mpmath.digamma(a) for a in alpha)
    return partition + (total - len(alpha)) * mpmath.digamma(total) - pulls


def dirichlet_kl(alpha, beta):
    alpha, beta = list(map(mpmath.mpf, alpha)), list(map(mpmath.mpf, beta))
    a, b = mpmath.fsum(alpha), mpmath.fsum(beta)
    each = (
        mpmath.loggamma(y) - mpmath.loggamma(x) + (x - y) * (mpmath.digamma(x) - mpmath.digamma(a))
        for x, y in zip(alpha, beta, strict=True)
    )
    return mpmath.loggamma(a) - mpmath.loggamma(b) + mpmath.fsum(each)


@pytest.mark.parametrize("size", SIZES)
def test_entropies_of_gammas(size):
    close(Gamma(size, 1e-3).entropy(), gamma_entropy(size, 1e-3))
    close(UnitGamma(size).entropy(), gamma_entropy(size, size))
    a = mpmath.mpf(size)
    close(InverseGamma(size, 1e3).entropy(), gamma_entropy(size, 1e-3) - 2 * mpmath.digamma(a))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("size", SIZES)
def test_divergences_of_gammas(size, factor):
    other, rate = size * factor, 1.1
    rounding = 1e-15 * max(size, other) * abs(math.log(factor))
    exact = gamma_kl(size, 2.0, other, rate)
    close(Gamma(size, 2.0).kl(Gamma(other, rate)), exact, rounding)
    close(InverseGamma(size, 2.0).kl(InverseGamma(other, rate)), exact, rounding)
    close(UnitGamma(size).kl(UnitGamma(other)), gamma_kl(size, size, other, other), rounding)
    near = NormalGamma(1e6, 3.0, size, 2.0).kl(NormalGamma(1e6, 3.0, other, rate))
    close(near, exact, rounding)


ALPHAS = [[1e-10, 1e-3], [1e-300, 1.0], [1e-3, 1e6], [3.0, 20.0], [1e9, 1.0], [1e12, 2e12]]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entropies_of_dirichlets(alpha):
    close(Dirichlet(alpha).entropy(), dirichlet_entropy(alpha))
    close(Beta(*alpha).entropy(), dirichlet_entropy(alpha))
    close(Dirichlet([*alpha, 2.0]).entropy(), dirichlet_entropy([*alpha, 2.0]))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergences_of_dirichlets(alpha, factor):
    beta = [alpha[0] * factor, alpha[1]]
    exact, rounding = dirichlet_kl(alpha, beta), 1e-15 * max(*alpha, *beta) * abs(math.log(factor))
    for ours in (Dirichlet(alpha).kl(Dirichlet(beta)), Beta(*alpha).kl(Beta(*beta))):
        close(ours, exact, rounding)
        assert ours >= -rounding


def test_derivatives_do_not_see_where_the_series_begins():
    shape = torch.tensor([3.0, 15.9, 16.1, 1e3], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Gamma(shape, 2.0).entropy().sum(), shape)
    for a, ours in zip(shape.tolist(), slope.tolist(), strict=True):
        close(ours, 1 + (1 - mpmath.mpf(a)) * mpmath.psi(1, a))
