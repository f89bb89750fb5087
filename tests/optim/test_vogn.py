"""VOGN and OGN: squared gradients of single examples, their own fixed point, and what they hand over."""

import numpy as np
import pytest
import torch
from scipy.optimize import fsolve
from torch import nn

from optim.oracles import COPIES, PRIOR_PRECISION, averages, logistic_data
from optim.reference import data, network
from posterity.optim import OGN, VOGN
from posterity.optim._distributed import Replicas


def per_example(model, inputs, targets):
    """Mean of gᵢ and of gᵢ², one backward pass for each example."""
    gradients = []
    for x, y in zip(inputs, targets, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    columns = [torch.stack(column) for column in zip(*gradients, strict=True)]
    return [c.mean(0) for c in columns], [c.square().mean(0) for c in columns]


@pytest.mark.parametrize("kind", [VOGN, OGN])
def test_trajectory(kind):
    model, (inputs, targets) = network().double(), data(12)
    inputs, options = inputs.double(), {"hess_init": 0.2, "weight_decay": 0.05, "damping": 0.01}
    optimizer = kind(model.parameters(), lr=0.1, ess=100, betas=(0.8, 0.9), **options)
    means = [p.detach().clone() for p in model.parameters()]
    momenta, hessians = [torch.zeros_like(m) for m in means], [torch.full_like(m, 0.2) for m in means]
    for t in range(1, 9):
        with optimizer.sampled_params(train=True):
            moved = [not torch.allclose(p, m) for p, m in zip(model.parameters(), means, strict=True)]
            assert all(moved) == (kind is VOGN)
            gradients, squares = per_example(model, inputs, targets)
            optimizer.backward(model, inputs, targets, "categorical")
        optimizer.step()
        optimizer.zero_grad()
        for i, p in enumerate(model.parameters()):
            momenta[i] = 0.8 * momenta[i] + 0.2 * gradients[i]
            hessians[i] = 0.9 * hessians[i] + 0.1 * squares[i]
            force = momenta[i] / (1 - 0.8**t) + 0.05 * means[i]
            means[i] = means[i] - 0.1 * force / (hessians[i] + 0.05 + 0.01)
            torch.testing.assert_close(p.detach(), means[i], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(optimizer.state[p]["hessian"], hessians[i], rtol=1e-9, atol=0)
    posterior = optimizer.posterior(model, likelihood="categorical", n=100)
    torch.testing.assert_close(posterior.variance["0.bias"], 1 / (100 * (hessians[1] + 0.05)))


@pytest.mark.filterwarnings("ignore:.* a step was skipped", "ignore:per-example Jacobians by torch.func")
def test_squares_of_a_skipped_step_are_forgotten():
    model, (inputs, targets) = network(), data(12)
    optimizer = VOGN(model.parameters(), lr=0.1, ess=100)
    for factor in (1.0, torch.nan, 1.0):

        def closure(factor=factor):
            optimizer.zero_grad()
            optimizer.backward(model, factor * inputs, targets, "categorical")

        optimizer.step(closure)
    assert optimizer.diagnostics().skipped == 1
    assert all(optimizer.state[p]["hessian"].isfinite().all() for p in model.parameters())


def test_two_samples_are_averaged():
    model, (inputs, targets) = network().double(), data(12)
    optimizer = VOGN(model.parameters(), lr=0.1, ess=50, mc_samples=2, betas=(0.0, 0.0))
    seen = []

    def closure():
        optimizer.zero_grad()
        seen.append(per_example(model, inputs.double(), targets))
        optimizer.backward(model, inputs.double(), targets, "categorical")

    optimizer.step(closure)
    for i, p in enumerate(model.parameters()):
        gradient, square = ((seen[0][k][i] + seen[1][k][i]) / 2 for k in (0, 1))
        torch.testing.assert_close(optimizer.state[p]["momentum"], gradient)
        torch.testing.assert_close(optimizer.state[p]["hessian"], square)


def test_samples_accumulate_gradients_as_backward_passes_do():
    model, (inputs, targets) = network().double(), data(12)
    optimizer = VOGN(model.parameters(), lr=0.1, ess=50, betas=(0.0, 0.0))
    seen = []
    for part in (slice(0, 6), slice(6, 12)):
        with optimizer.sampled_params(train=True):
            kept = [p.grad for p in model.parameters()]
            seen.append(per_example(model, inputs[part].double(), targets[part]))
            for p, gradient in zip(model.parameters(), kept, strict=True):
                p.grad = gradient
            optimizer.backward(model, inputs[part].double(), targets[part], "categorical")
    optimizer.step()
    for i, p in enumerate(model.parameters()):
        torch.testing.assert_close(optimizer.state[p]["momentum"], seen[0][0][i] + seen[1][0][i])
        torch.testing.assert_close(optimizer.state[p]["hessian"], (seen[0][1][i] + seen[1][1][i]) / 2)


def gauss_newton_fixed_point(inputs, labels):
    """m and s with E_q[∇ℓ] + s₀m = 0 and s = Σᵢ E_q[gᵢ²] + s₀, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def residual(parameters):
        mean, precision = parameters[:2], np.exp(parameters[2:])
        spread = np.sqrt(inputs**2 @ (1 / precision))
        errors = 1 / (1 + np.exp(-(inputs @ mean)[:, None] - spread[:, None] * nodes)) - labels[:, None]
        slope = inputs.T @ (errors @ weights) + PRIOR_PRECISION * mean
        return np.concatenate([slope, (inputs**2).T @ (errors**2 @ weights) + PRIOR_PRECISION - precision])

    solution = fsolve(residual, np.array([0.5, -0.5, 4.0, 4.0]), xtol=1e-12)
    return torch.tensor(solution[:2]), torch.tensor(np.exp(solution[2:]))


def test_logistic_regression_reaches_the_gauss_newton_fixed_point_and_not_the_mean_field():
    inputs, labels, _, mean_field = logistic_data(100)
    mean, precision = gauss_newton_fixed_point(inputs.numpy(), labels.numpy())
    model = nn.Linear(2, COPIES, bias=False, dtype=torch.float64)  # independent outputs: as many runs
    nn.init.zeros_(model.weight)
    optimizer = VOGN(model.parameters(), lr=1.0, ess=100, hess_init=0.2, weight_decay=PRIOR_PRECISION / 100)

    def step(t):
        optimizer.param_groups[0].update(betas=(0.9, 1 - 2 / (t + 20)), lr=0.3 / (1 + t / 50))
        with optimizer.sampled_params(train=True):
            optimizer.backward(model, inputs, labels[:, None].expand(-1, COPIES), "bernoulli")
        optimizer.step()
        optimizer.zero_grad()
        return model.weight.detach().clone(), 100 * optimizer.state[model.weight]["hessian"] + PRIOR_PRECISION

    found, width = averages(step, 500)
    torch.testing.assert_close(found, mean, rtol=0, atol=8e-3)
    torch.testing.assert_close(width, precision, rtol=1e-2, atol=0)
    assert not torch.allclose(width, mean_field, rtol=2e-2)


def test_a_step_without_squares_is_said():
    model, (inputs, targets) = network(), data()
    optimizer = VOGN(model.parameters(), lr=0.1, ess=32)
    with optimizer.sampled_params(train=True):
        nn.functional.cross_entropy(model(inputs), targets).backward()
    with pytest.warns(UserWarning, match="optimizer.backward"):
        optimizer.step()
    assert all((optimizer.state[p]["hessian"] == 1).all() for p in model.parameters())


def test_replicas_are_told_that_they_drift_apart(monkeypatch):
    monkeypatch.setattr(Replicas, "count", 2)
    model = network()
    optimizer = VOGN(model.parameters(), lr=0.1, ess=32)
    with pytest.warns(UserWarning, match="not averaged over processes"):
        optimizer.backward(model, *data(), "categorical")


def test_frozen_and_foreign_parameters_are_left_alone():
    model, (inputs, targets) = network(), data()
    model[0].weight.requires_grad_(False)
    optimizer = VOGN([model[2].weight], lr=0.1, ess=32)
    optimizer.backward(model, inputs, targets, "categorical")
    assert model[0].weight.grad is None
    assert model[2].bias.grad is None
    assert model[2].weight.grad is not None
