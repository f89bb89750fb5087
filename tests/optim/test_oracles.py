"""IVON against posteriors that are known exactly: linear regression, and logistic regression by quadrature."""

import pytest
import torch
import torch.nn.functional as F

from optim.oracles import COPIES, PRIOR_PRECISION, linear_data, logistic_data
from posterity.optim import IVON


def replicate(loss, ess, dims, steps, lr, rho=None, **options):
    """Train independent copies; return their means and precisions averaged over the last half, and the optimizer."""
    theta = torch.nn.Parameter(torch.zeros(COPIES, dims, dtype=torch.float64))
    optimizer = IVON([theta], lr=lr(0), ess=ess, weight_decay=PRIOR_PRECISION / ess, **options)
    means, precisions = [], []
    for t in range(steps):
        optimizer.param_groups[0]["betas"] = (0.9, 1 - rho(t) if rho else "auto")
        optimizer.param_groups[0]["lr"] = lr(t)
        with optimizer.sampled_params(train=True):
            loss(theta, t).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if t >= steps // 2:
            means.append(theta.detach().clone())
            precisions.append(ess * (optimizer.state[theta]["hessian"] + PRIOR_PRECISION / ess))
    mean, precision = torch.stack(means).mean(0), torch.stack(precisions).mean(0)
    return mean, precision, optimizer


def within(samples, expected, errors=5.0):
    """Whether the average over copies agrees with the expected value, in units of its own standard error."""
    distance = (samples.mean(0) - expected).abs() / (samples.std(0) / len(samples) ** 0.5)
    assert (distance < errors).all(), f"{samples.mean(0)} instead of {expected}: {distance} standard errors away"


def test_linear_regression_is_exact():
    inputs, targets, mean, precision = linear_data()

    def loss(theta, _):
        return 0.5 * ((theta @ inputs.T - targets) ** 2).mean(-1)

    found, width, _ = replicate(loss, len(targets), 3, 800, rho=lambda t: 2 / (t + 20), lr=lambda t: 0.5 / (1 + t / 50))
    within(found, mean)
    torch.testing.assert_close(found.mean(0), mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(width.mean(0), precision, rtol=1.5e-2, atol=0)


def test_logistic_regression_reaches_the_mean_field_optimum():
    inputs, labels, mean, precision = logistic_data()
    labels = labels.expand(COPIES, -1)

    def loss(theta, _):
        return F.binary_cross_entropy_with_logits(theta @ inputs.T, labels, reduction="none").mean(-1)

    found, width, _ = replicate(loss, 400, 2, 800, rho=lambda t: 2 / (t + 20), lr=lambda t: 2 / (1 + t / 50))
    torch.testing.assert_close(found.mean(0), mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(width.mean(0), precision, rtol=1.5e-2, atol=0)


def minibatch_logistic(steps, **options):
    """Relative inflation of the precision under minibatches of 20 out of 2000, and the optimizer."""
    inputs, labels, _, precision = logistic_data(2000)
    generator = torch.Generator().manual_seed(0)

    def loss(theta, _):
        picks = torch.randint(len(labels), (COPIES, 20), generator=generator)
        logits = (inputs[picks] * theta[:, None]).sum(-1)
        return F.binary_cross_entropy_with_logits(logits, labels[picks], reduction="none").mean(-1)

    start = (precision.mean().item() - PRIOR_PRECISION) / 2000
    _, width, optimizer = replicate(loss, 2000, 2, steps, lr=lambda t: 0.05, hess_init=start, **options)
    return (width.mean(0) / precision - 1).mean().item(), optimizer


def test_a_finite_beta2_inflates_the_hessian_as_diagnosed():
    inflation, optimizer = minibatch_logistic(600, rho=lambda t: 0.01)
    assert inflation > 0.4
    assert optimizer.diagnostics().hessian_bias == pytest.approx(inflation / (1 + inflation), rel=0.25)


def test_auto_beta2_keeps_the_bias_under_five_percent():
    inflation, optimizer = minibatch_logistic(1500, total_steps=1500)
    assert abs(inflation) < 0.06
    assert optimizer.diagnostics().hessian_bias <= 0.0501
    assert optimizer.diagnostics().learnt > 0.6
