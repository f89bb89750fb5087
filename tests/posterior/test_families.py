"""Posteriors are what the rule moves: each structure beside the family of `posterity.families` that it is."""

from __future__ import annotations

import pytest
import torch

from posterior import cases
from posterity import BayesianLearningRule
from posterity.errors import Undefined
from posterity.families import DiagonalGaussian, MixtureOfGaussians, SignBernoulli
from posterity.gradients import Delta
from posterity.posterior import Diagonal, Mixture, Structure
from posterity.posterior.sites import natural
from posterity.trees import Tree, from_vector, to_vector

KINDS = [*cases.GAUSSIANS, "last_layer", "signs"]
EXACT = {"rtol": 1e-9, "atol": 1e-9}  # float64, matrices of a few dozen rows


def varying(q: Structure, seed: int = 5) -> Tree:
    """A point in the space of what varies: signs where the weights are signs."""
    tree = {name: cases.weights(seed)[name] for name in q.varying.names}
    return {name: t.sign() for name, t in tree.items()} if q.kind == "signs" else tree


@pytest.mark.parametrize("kind", KINDS)
def test_density_entropy_and_divergence_are_the_familys(kind: str) -> None:
    q, p = cases.STRUCTURES[kind](0), cases.STRUCTURES[kind](1)
    family, other = q.as_family(), p.as_family()
    theta = varying(q)
    whole = theta if kind == "last_layer" else {name: theta[name] for name in q.names}
    torch.testing.assert_close(q.log_prob(whole).double(), family.log_prob(to_vector(theta)), **EXACT)
    torch.testing.assert_close(q.entropy().double(), family.entropy(), **EXACT)
    torch.testing.assert_close(q.kl(p).double(), family.kl(other), **EXACT)
    torch.testing.assert_close(to_vector({name: q.mean[name] for name in q.varying.names}), family.mean, **EXACT)
    variance = to_vector({name: q.variance[name] for name in q.varying.names})
    torch.testing.assert_close(variance, family.variance, **EXACT)


@pytest.mark.parametrize("kind", ["diagonal", "full", "last_layer"])
def test_sites_are_natural_parameters(kind: str) -> None:
    """A site (b, A) is λ = (Sm, −S/2) of the family: b = λ₁ and A = −2 λ₂."""
    q = cases.STRUCTURES[kind]()
    site, (linear, quadratic) = natural(q), q.as_family().natural
    torch.testing.assert_close(to_vector(site.linear), linear, **EXACT)
    precision = site.precision if isinstance(site.precision, torch.Tensor) else to_vector(site.precision)
    torch.testing.assert_close(precision, -2.0 * quadratic, **EXACT)


def test_a_mixture_is_the_familys_mixture() -> None:
    q = cases.mixture()
    family = q.as_family()
    assert isinstance(family, MixtureOfGaussians)
    torch.testing.assert_close(q.log_prob(cases.weights(5)), family.log_prob(to_vector(cases.weights(5))), **EXACT)
    torch.testing.assert_close(to_vector(q.mean), family.mean, **EXACT)
    dense, diagonal = q.components[1], q.components[0]
    plain, turned = (Mixture(q.weights, [dense, other]).as_family() for other in (diagonal, _reversed(diagonal)))
    torch.testing.assert_close(turned.log_prob(family.mean), plain.log_prob(family.mean), **EXACT)


def _reversed(q: Structure) -> Diagonal:
    """A diagonal Gaussian with its parameters in the other order."""
    gaussian = q.gaussian
    names = tuple(reversed(gaussian.names))
    precision = gaussian.precision_diagonal()
    return Diagonal({name: gaussian.mean[name] for name in names}, {name: precision[name] for name in names})


@pytest.mark.parametrize("kind", ["ensemble", "dropout"])
def test_points_and_masks_are_no_family(kind: str) -> None:
    with pytest.raises(Undefined, match="exponential family: not defined"):
        cases.STRUCTURES[kind]().as_family()


def test_the_rule_moves_a_posterior() -> None:
    """One Newton step of the rule on a quadratic loss, from a posterior and back: prior plus the data's site."""
    prior = cases.diagonal()
    curvature = cases.spread(prior.mean, 7)
    target = cases.weights(3)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        away = theta - to_vector(target)
        from_prior = theta - to_vector(prior.mean)
        return 0.5 * (to_vector(curvature) * away**2 + to_vector(prior.precision) * from_prior**2).sum()

    family = prior.as_family()
    assert isinstance(family, DiagonalGaussian)
    moved = BayesianLearningRule(Delta(), lr=1.0).step(family, loss)
    found = Diagonal(from_vector(moved.mean, prior.mean), from_vector(moved.precision, prior.mean))
    wanted = {name: prior.precision[name] + h for name, h in curvature.items()}
    mean = {n: (prior.precision[n] * m + curvature[n] * target[n]) / wanted[n] for n, m in prior.mean.items()}
    torch.testing.assert_close(to_vector(found.precision), to_vector(wanted), **EXACT)
    torch.testing.assert_close(to_vector(found.mean), to_vector(mean), **EXACT)


def test_signs_are_bernoulli() -> None:
    family = cases.signs().as_family()
    assert isinstance(family, SignBernoulli)
    torch.testing.assert_close(family.natural[0], to_vector(cases.signs().natural))
