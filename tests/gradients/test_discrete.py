"""Enumeration, the Gumbel relaxation and dropout masks against sums over all states."""

import pytest
import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.families import Bernoulli, Categorical, Family, FixedGaussian, Gaussian, SignBernoulli
from posterity.gradients import Delta, DropoutMasks, Enumeration, RelaxedBernoulli

W = torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.8, -1.0]], dtype=torch.float64)
NATURAL = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64)


def loss(theta: Tensor) -> Tensor:
    return (torch.tanh(W @ theta) - 0.5).square().sum() + torch.sin(theta.prod())


def by_autograd(q: Family) -> Tensor:
    """∇_μ Σ q_μ(θ) ℓ(θ), through the family's own map from μ."""
    expectation = q.expectation[0].detach().clone().requires_grad_()
    values = torch.stack([loss(state) for state in q.support()])
    total = (q.with_expectation((expectation,)).log_prob(q.support()).exp() * values).sum()
    return torch.autograd.grad(total, expectation)[0]


@pytest.mark.parametrize("q", [SignBernoulli(NATURAL), Bernoulli(NATURAL), Categorical(NATURAL[:2])], ids=repr)
def test_enumeration_is_the_gradient_in_expectation_parameters(q):
    (found,) = Enumeration()(q, loss)
    torch.testing.assert_close(found, by_autograd(q), rtol=1e-12, atol=1e-13)
    wanted = sum(q.log_prob(state).exp() * loss(state) for state in q.support())
    torch.testing.assert_close(Enumeration().expectation(q, loss), wanted)


def test_enumeration_survives_certainty():
    certain = torch.tensor([50.0, -50.0, 0.0], dtype=torch.float64)
    (found,) = Enumeration()(SignBernoulli(certain), loss)
    up, down = certain.sign(), certain.sign()
    up[2], down[2] = 1.0, -1.0
    torch.testing.assert_close(found[2], 0.5 * (loss(up) - loss(down)))
    assert found.isfinite().all()


def test_enumeration_of_a_batch():
    batch = torch.stack((NATURAL, -2.0 * NATURAL))
    (found,) = Enumeration()(SignBernoulli(batch), loss)
    for row, natural in zip(found, batch, strict=True):
        torch.testing.assert_close(row, by_autograd(SignBernoulli(natural)))
    (classes,) = Enumeration()(Categorical(batch[:, :2]), loss)
    torch.testing.assert_close(classes[1], by_autograd(Categorical(batch[1, :2])))


def test_the_bias_of_the_relaxation_shrinks_with_its_temperature():
    q, exact = SignBernoulli(NATURAL), by_autograd(SignBernoulli(NATURAL))
    biases = []
    for temperature in (1.0, 0.3, 0.1):
        generator = torch.Generator().manual_seed(0)
        found = RelaxedBernoulli(400_000, temperature, generator)(q, loss)[0]
        biases.append((found - exact).abs().max().item())
    assert biases[0] > 2 * biases[1] > 4 * biases[2]
    assert biases[2] < 0.02


def test_the_relaxation_differentiates_its_own_expectation():
    natural = NATURAL.clone().requires_grad_()
    u = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    soft = torch.tanh((natural + 0.5 * torch.logit(u)) / 0.7)
    value = torch.stack([loss(w) for w in soft]).mean()
    wanted = torch.autograd.grad(value, natural)[0] / (1.0 - NATURAL.tanh() ** 2)  # ∂λ/∂μ
    estimator = RelaxedBernoulli(50, 0.7, torch.Generator().manual_seed(4))
    torch.testing.assert_close(estimator(SignBernoulli(NATURAL), loss)[0], wanted)
    again = RelaxedBernoulli(50, 0.7, torch.Generator().manual_seed(4))
    torch.testing.assert_close(again.expectation(SignBernoulli(NATURAL), loss), value.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_relaxation_survives_certainty(dtype):
    certain = SignBernoulli(torch.tensor([1000.0, -1000.0], dtype=dtype))
    (found,) = RelaxedBernoulli(8, 1.0, torch.Generator().manual_seed(0))(certain, lambda w: w.sum())
    noise = torch.rand(8, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    # Far out (cosh λ / cosh(λ + δ))² → e^{∓2δ}, with δ = ½ log u/(1−u).
    wanted = torch.stack(((1 - noise[:, 0]) / noise[:, 0], noise[:, 1] / (1 - noise[:, 1])), -1).mean(0)
    torch.testing.assert_close(found, wanted, rtol=1e-3 if dtype is torch.float32 else 1e-11, atol=0.0)


@pytest.mark.parametrize(("family", "low"), [(SignBernoulli, -1.0), (Bernoulli, 0.0)])
def test_delta_looks_at_the_mean_or_at_the_mode(family, low):
    q = family(NATURAL)
    mode = torch.where(NATURAL >= 0, 1.0, low).double()
    for at, point in (("mean", q.mean), ("mode", mode)):
        wanted = torch.autograd.functional.jacobian(loss, point)
        torch.testing.assert_close(Delta(at=at)(q, loss)[0], wanted)
        torch.testing.assert_close(Delta(at=at).expectation(q, loss), loss(point))


def test_dropout_masks_average_to_the_expectation_over_all():
    q = FixedGaussian(NATURAL, torch.eye(3, dtype=torch.float64))
    exact = DropoutMasks(0.7, samples=None)
    wanted, value = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for bits in Bernoulli(NATURAL).support():
        weight = 0.7 ** bits.sum() * 0.3 ** (3 - bits.sum())
        wanted += weight * torch.autograd.functional.jacobian(lambda m, bits=bits: loss(bits / 0.7 * m), NATURAL)
        value += weight * loss(bits / 0.7 * NATURAL)
    torch.testing.assert_close(exact(q, loss)[0], wanted)
    torch.testing.assert_close(exact.expectation(q, loss), value)
    many = DropoutMasks(0.7, 200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(many(q, loss)[0], wanted, rtol=0.0, atol=0.01)


def test_what_cannot_be_is_refused():
    q = Gaussian.standard(3)
    for estimator in (Enumeration(), RelaxedBernoulli(), DropoutMasks()):
        with pytest.raises(InvalidInput, match="got 'Gaussian'"):
            estimator(q, loss)
    with pytest.raises(InvalidInput, match="temperature"):
        RelaxedBernoulli(temperature=0.0)
    with pytest.raises(InvalidInput, match="keep"):
        DropoutMasks(keep=0.0)
    for estimator, many in ((Enumeration(), SignBernoulli), (DropoutMasks(samples=None), FixedGaussian.standard)):
        with pytest.raises(InvalidInput, match="bits: expected at most 20"):
            estimator(many(torch.zeros(30) if many is SignBernoulli else 30), lambda theta: theta.sum())
