"""Total losses: what a minibatch stands for, and the curvatures that need to know the examples."""

import itertools

import pytest
import torch
from torch import Tensor

from posterity.errors import InvalidInput
from posterity.families import DiagonalGaussian, Gamma, Gaussian, MixtureOfGaussians
from posterity.gradients import (
    Conjugate,
    ConjugateLoss,
    DataLoss,
    Delta,
    GaussNewton,
    LinearLoss,
    SquaredGradients,
)

N = 12
INPUTS = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % 3
THETA = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def network(theta: Tensor, inputs: Tensor) -> Tensor:
    return torch.tanh(inputs @ theta.reshape(2, 3))


def ridge(theta: Tensor) -> Tensor:
    return 1.5 * theta @ theta


def data_loss(**changes) -> DataLoss:
    settings = {"inputs": INPUTS, "targets": LABELS, "likelihood": "categorical", "model": network}
    return DataLoss(**(settings | {"regulariser": ridge} | changes))


def by_hand(theta: Tensor, i: int) -> Tensor:
    return torch.nn.functional.cross_entropy(network(theta, INPUTS[i : i + 1]), LABELS[i : i + 1])


def coordinates(curvature, loss, q=None) -> tuple[Tensor, Tensor]:
    """Gradient and curvature that the delta method sees at THETA, taken out of its coordinates."""
    q = q or Gaussian(THETA, torch.eye(6, dtype=torch.float64))
    linear, quadratic = Delta(curvature)(q, loss)
    bend = 2.0 * quadratic
    return linear + (bend * THETA if bend.ndim == 1 else bend @ THETA), bend


def test_the_whole_loss_is_the_sum():
    wanted = sum(by_hand(THETA, i) for i in range(N)) + ridge(THETA)
    torch.testing.assert_close(data_loss()(THETA), wanted)


def test_minibatches_average_to_the_whole_and_leave_the_regulariser_alone():
    parts = list(itertools.islice(data_loss().minibatches(4, seed=3), 2 * N // 4))
    assert all(part.weight == 3.0 for part in parts)
    average = sum(part(THETA) for part in parts) / len(parts)
    torch.testing.assert_close(average, data_loss()(THETA), rtol=1e-13, atol=0.0)
    first, second = (torch.cat([p.inputs for p in half]) for half in (parts[:3], parts[3:]))
    assert not torch.equal(first, second)  # each epoch has its own order ...
    torch.testing.assert_close(first.sort(0).values, second.sort(0).values)  # ... of the same examples


@pytest.mark.parametrize("curvature", [GaussNewton(), SquaredGradients(per_example=True)], ids=str)
def test_curvatures_of_minibatches_average_to_the_whole(curvature):
    parts = list(itertools.islice(data_loss().minibatches(4), 3))
    average = sum(coordinates(curvature, part)[1] for part in parts) / 3
    torch.testing.assert_close(average, coordinates(curvature, data_loss())[1], rtol=1e-12, atol=1e-12)


def test_gauss_newton_by_hand():
    matrix = 3.0 * torch.eye(6, dtype=torch.float64)
    for i in range(N):
        jacobian = torch.autograd.functional.jacobian(lambda t, i=i: network(t, INPUTS[i]), THETA)
        p = torch.softmax(network(THETA, INPUTS[i]), -1)
        matrix += jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    torch.testing.assert_close(coordinates(GaussNewton(), data_loss())[1], matrix)
    diagonal = DiagonalGaussian(THETA, torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(coordinates(GaussNewton(), data_loss(), diagonal)[1], matrix.diagonal())


def test_squared_gradients_by_hand():
    each = torch.stack([torch.autograd.functional.jacobian(lambda t, i=i: by_hand(t, i), THETA) for i in range(N)])
    total = each.sum(0) + 3.0 * THETA
    diagonal = DiagonalGaussian(THETA, torch.ones(6, dtype=torch.float64))
    for q in (None, diagonal):
        gradient, squares = coordinates(SquaredGradients(), data_loss(), q)
        torch.testing.assert_close(gradient, total)
        torch.testing.assert_close(squares, total**2 if q else torch.outer(total, total))
        _, squares = coordinates(SquaredGradients(per_example=True), data_loss(), q)
        wanted = each.T @ each + 3.0 * torch.eye(6, dtype=torch.float64)
        torch.testing.assert_close(squares, wanted.diagonal() if q else wanted)


def test_inputs_may_be_a_mapping():
    tensors, mapping = data_loss(), data_loss(inputs={"x": INPUTS}, model=lambda t, inputs: network(t, inputs["x"]))
    curvature = SquaredGradients(per_example=True)
    torch.testing.assert_close(coordinates(curvature, mapping)[1], coordinates(curvature, tensors)[1])


def test_conjugate_losses_scale_alike():
    counts = torch.tensor([3.0, 0.0, 2.0], dtype=torch.float64)
    q = Gamma(2.0, 1.0)
    part = ConjugateLoss.of(counts, -torch.ones_like(counts), n=30)
    found = Conjugate()(q, part)
    assert [block.item() for block in found] == [-50.0, 30.0]
    wanted = -(50.0 * q.expectation[0] - 30.0 * q.expectation[1])
    torch.testing.assert_close(Conjugate().expectation(q, part), wanted)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match=r"n: expected at least the number of given examples \(12\), got 3"):
        data_loss(n=3)
    with pytest.raises(InvalidInput, match="the loss of a whole data set"):
        next(data_loss(n=100).minibatches(4))
    column = {"likelihood": "gaussian", "model": lambda t, x: x @ t[:2, None]}
    with pytest.raises(InvalidInput, match=r"targets: expected shape \(12, 1\) like the outputs, got \(12,\)"):
        data_loss(targets=torch.ones(N, dtype=torch.float64), **column)(THETA)  # would broadcast to (12, 12)
    with pytest.raises(InvalidInput, match=r"labels: expected integers in 0..2"):
        data_loss(targets=LABELS + 1)(THETA)
    with pytest.raises(InvalidInput, match=r"model: expected outputs \(12, K\), got \(12,\)"):
        data_loss(targets=torch.ones(N), likelihood="gaussian", model=lambda t, x: x @ t[:2])(THETA)
    with pytest.raises(InvalidInput, match="inputs: expected floating-point numbers"):
        LinearLoss(inputs=torch.ones(N, 2, dtype=torch.int64), targets=torch.ones(N), likelihood="gaussian")
    with pytest.raises(InvalidInput, match=r"batch_size: expected a whole number >= 1, got 2\.5"):
        next(data_loss().minibatches(2.5))
    with pytest.raises(InvalidInput, match="likelihood"):
        data_loss(likelihood="cauchy")
    with pytest.raises(InvalidInput, match="inputs"):
        LinearLoss(inputs=INPUTS[:3], targets=torch.ones(N), likelihood="gaussian")
    with pytest.raises(InvalidInput, match="counts"):
        LinearLoss(inputs=INPUTS, targets=-torch.ones(N), likelihood="poisson")
    with pytest.raises(InvalidInput, match="DataLoss"):
        Delta(GaussNewton())(Gaussian.standard(6), ridge)
    with pytest.raises(InvalidInput, match="one row for each example"):
        ConjugateLoss.of(torch.ones(2), torch.ones(3))
    with pytest.raises(InvalidInput, match="a function of θ"):
        Delta()(Gaussian.standard(2), ConjugateLoss.of(torch.ones(2)))
    with pytest.raises(InvalidInput, match="a ConjugateLoss"):
        Conjugate()(Gamma(2.0, 1.0), ridge)
    with pytest.raises(InvalidInput, match="2 blocks"):
        Conjugate()(Gamma(2.0, 1.0), ConjugateLoss.of(torch.ones(2)))
    mixture = MixtureOfGaussians.of([0.5, 0.5], [[0.0], [1.0]], [[[1.0]], [[1.0]]])
    with pytest.raises(InvalidInput, match="an exponential family, got 'MixtureOfGaussians'"):
        Conjugate().expectation(mixture, ConjugateLoss.of(torch.ones(2)))
