"""EVON: exact Gaussian inference where its basis is that of the Hessian, and its equations written out densely."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence

from optim.oracles import PRIOR_PRECISION, gaussian_logistic, linear_data, logistic_data
from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import EVON
from posterity.posterior import Posterior, Rotated

DOUBLE = torch.float64


class Linear(torch.nn.Module):
    """One output without a bias: a weight (1, d), whose right basis is a basis of all weights."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, size, dtype=DOUBLE))

    def forward(self, x):
        return x @ self.weight[0]


def trained(loss, size, n, lr):
    """Mean and precision, averaged over the last half of 1500 steps of one sample each."""
    model, found = Linear(size), []
    optimizer = EVON(model.parameters(), lr=lr, ess=n, weight_decay=PRIOR_PRECISION / n)
    for t in range(1500):
        optimizer.param_groups[0].update(lr=lr / (1 + t / 50), betas=(0.9, 1 - 2 / (t + 20)))
        with optimizer.sampled_params(train=True):
            loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if t >= 750:
            structure = optimizer.structure({"weight": model.weight})
            found.append((model.weight[0].detach().clone(), structure.precision_matrix()))
    return [torch.stack(values).mean(0) for values in zip(*found, strict=True)]


def divergence(mean, precision, other, other_precision):
    one, two = (MultivariateNormal(m, precision_matrix=p) for m, p in ((mean, precision), (other, other_precision)))
    return float(kl_divergence(one, two))


def test_linear_regression_is_exact_beyond_the_mean_field():
    inputs, targets, mean, diagonal = linear_data()
    exact = inputs.T @ inputs + PRIOR_PRECISION * torch.eye(3, dtype=DOUBLE)
    found = trained(lambda model: 0.5 * ((model(inputs) - targets) ** 2).mean(), 3, len(targets), lr=0.5)
    assert divergence(mean, torch.diag(diagonal), mean, exact) > 0.35
    assert divergence(*found, mean, exact) < 5e-3
    torch.testing.assert_close(found[1], exact, rtol=0, atol=0.06 * float(exact.max()))


def test_logistic_regression_is_gaussian_inference():
    inputs, labels, _, _ = logistic_data()
    mean, exact = gaussian_logistic(inputs, labels)
    found = trained(lambda model: F.binary_cross_entropy_with_logits(model(inputs), labels), 2, len(labels), lr=2.0)
    assert divergence(*found, mean, exact) < 5e-3


@pytest.mark.parametrize(
    ("pull", "batch", "low", "high"),
    [(1, None, -1e-12, 1e-12), (0, None, 0.008, 0.01), (1, 10, 0.04, 0.06)],
    ids=["with the prior", "as published", "minibatches"],
)
def test_what_tilts_the_basis(pull, batch, low, high):
    """The best Gaussian in the eigenbasis of the gradients' second moment, where training has converged."""
    inputs, targets, mean, _ = linear_data()
    n, exact = len(targets), inputs.T @ inputs + PRIOR_PRECISION * torch.eye(3, dtype=DOUBLE)
    hessian, each = inputs.T @ inputs / n, inputs * (inputs @ mean - targets)[:, None]
    centre = each.mean(0) + pull * PRIOR_PRECISION / n * mean
    moment = hessian @ torch.linalg.inv(exact) @ hessian + torch.outer(centre, centre)
    if batch is not None:
        moment += each.T.cov(correction=0) / batch
    basis = torch.linalg.eigh(moment).eigenvectors
    fitted = basis @ torch.diag((basis.T @ exact @ basis).diagonal()) @ basis.T
    assert low < divergence(mean, fitted, mean, exact) < high


def test_trajectory():
    """Line by line on matrices and vectors, with dense rotations of the flattened weights."""
    model, (inputs, targets) = network().double(), data()
    inputs = inputs.double()
    optimizer = EVON(model.parameters(), 0.3, 50, 0.5, (0.9, 0.8), 0.9, refresh=2, weight_decay=0.1)
    parameters = list(model.parameters())
    mean = [p.detach().clone() for p in parameters]
    g = [torch.zeros(p.numel(), dtype=DOUBLE) for p in parameters]
    h = [torch.full((p.numel(),), 0.5, dtype=DOUBLE) for p in parameters]
    basis = [torch.eye(p.numel(), dtype=DOUBLE) for p in parameters]
    sums = [[0.0, 0.0] for _ in parameters]
    for t in range(1, 7):
        with optimizer.sampled_params(train=True):
            noise = [(p.detach() - m).flatten() for p, m in zip(parameters, mean, strict=True)]
            loss(model, inputs, targets).backward()
        gradients = [p.grad.clone() for p in parameters]
        optimizer.step()
        optimizer.zero_grad()
        for i, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            turned = basis[i].T @ gradient.flatten()
            surprise = 50 * (basis[i].T @ noise[i]) * turned * (h[i] + 0.1) - h[i]
            g[i] = 0.9 * g[i] + 0.1 * turned
            h[i] = h[i] + 0.2 * surprise + 0.5 * 0.04 * surprise**2 / (h[i] + 0.1)
            force = g[i] / (1 - 0.9**t) + 0.1 * basis[i].T @ mean[i].flatten()
            total, old = gradient + 0.1 * mean[i], mean[i]
            mean[i] = old - 0.3 * 0.6 * (basis[i] @ (force / (h[i] + 0.1))).view(p.shape)
            torch.testing.assert_close(p.detach(), mean[i], rtol=1e-9, atol=1e-11)
            if p.ndim < 2:
                continue
            rate = max(0.1, 1 / t)
            sums[i][0] = (1 - rate) * sums[i][0] + rate * total @ total.T
            sums[i][1] = (1 - rate) * sums[i][1] + rate * total.T @ total
            if t % 2 == 0:
                new = torch.kron(*(torch.linalg.eigh(side).eigenvectors for side in sums[i]))
                precision = basis[i] @ torch.diag(h[i]) @ basis[i].T
                g[i], h[i], basis[i] = new.T @ basis[i] @ g[i], (new.T @ precision @ new).diagonal().clone(), new


def test_samples_have_the_covariance_that_is_handed_over():
    model = torch.nn.Linear(2, 2, bias=False).double()
    optimizer = EVON(model.parameters(), lr=0.1, ess=20, betas=(0.9, 0.9), refresh=1)
    x, y = torch.randn(30, 2, dtype=DOUBLE), torch.randn(30, 2, dtype=DOUBLE)
    for _ in range(20):
        optimizer.step(lambda: F.mse_loss(model(x), y).backward())
    posterior = optimizer.posterior(model, likelihood="gaussian", n=20)
    assert isinstance(posterior.structure, Rotated)
    draws = []
    for _ in range(2000):
        with optimizer.sampled_params():
            draws.append(model.weight.detach().clone().flatten())
    exact = posterior.structure.covariance_matrix()
    torch.testing.assert_close(torch.stack(draws).T.cov(), exact, rtol=0, atol=0.1 * float(exact.max()))
    said = optimizer.diagnostics(loss=0.5)
    assert said.kl == pytest.approx(float(posterior.kl(posterior.prior)), rel=1e-6)
    widths = np.quantile(posterior.variance["weight"].sqrt(), [0.05, 0.5, 0.95])
    np.testing.assert_allclose(said.sigma, widths, rtol=1e-5)


@pytest.mark.parametrize("clip", [False, True])
def test_several_samples_a_step_meet_their_own_gradients(clip):
    weight = torch.nn.Parameter(torch.tensor([[1.0, -1.0]], dtype=DOUBLE))
    optimizer = EVON([weight], lr=0.1, ess=10, hess_init=0.5, betas=(0.9, 0.9))
    product, total = torch.zeros_like(weight), torch.zeros_like(weight)
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            (0.5 * (weight**4).sum()).backward()
            noise, own = weight.detach() - torch.tensor([[1.0, -1.0]]), 2 * weight.detach() ** 3
        product, total = product + noise * own, total + own
    factor = 1.0
    if clip:
        factor = 0.01 / float(total.norm())
        weight.grad *= factor
    optimizer.step()
    surprise = 10 * factor * product * (0.5 + 1e-4) - 0.5
    expected = 0.5 + 0.1 * surprise + 0.5 * 0.01 * surprise**2 / (0.5 + 1e-4)
    torch.testing.assert_close(optimizer.state[weight]["hessian"], expected)


def test_convolutions_train_save_and_load(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(27, 2))
    x, y = torch.randn(40, 1, 5, 5), torch.arange(40) % 2
    x += y[:, None, None, None]
    optimizer = EVON(model.parameters(), lr=0.1, ess=40, betas=(0.9, 0.9))
    handle = optimizer.attach(model)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    handle.remove()
    optimizer.posterior(model, likelihood="categorical", n=40).save(tmp_path / "conv")
    back = Posterior.load(tmp_path / "conv")
    back.apply(model)
    assert (model(x).argmax(1) == y).float().mean() > 0.9
    assert [tuple(u.shape) for u in back.structure.bases["0.weight"]] == [(3, 3), (9, 9)]
    assert set(back.structure.bases) == {"0.weight", "3.weight"}, "vectors are not turned"


def test_bad_input():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="refresh: expected a whole number >= 1"):
        EVON([weight], lr=0.1, ess=10, refresh=0)
    with pytest.raises(InvalidInput, match="Invalid beta parameter at index 2"):  # after the two of `betas`
        EVON([weight], lr=0.1, ess=10, basis_beta=1.0)
