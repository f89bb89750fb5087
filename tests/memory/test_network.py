"""A small network on digits, trained to its optimum, against retraining without single examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, vmap

import posterity as po
from memory.problems import digits
from networks import perceptron
from posterity.memory import leave_one_out
from posterity.memory.reliability import Reliability
from posterity.posterior import Diagonal, Posterior
from posterity.trees import from_vector, snapshot, to_vector, trainable

N, LEFT_OUT, DELTA = 300, 40, 1.0


@pytest.fixture(scope="module")
def retrained():
    """The model at its optimum, the data, and the outputs for each left-out example without it."""
    x, y = digits(N)
    x = x[:, 1:]
    torch.manual_seed(0)
    model = perceptron(64, 12, 10).double()
    like = snapshot(trainable(model))

    def total(theta, w):
        f = functional_call(model, from_vector(theta, like), (x,))
        return (w * F.cross_entropy(f, y, reduction="none")).sum() + 0.5 * DELTA * theta.dot(theta)

    theta, everything = to_vector(like).requires_grad_(), torch.ones(N, dtype=x.dtype)
    optimizer = torch.optim.LBFGS([theta], max_iter=3000, history_size=50, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = total(theta, everything)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    theta = theta.detach()
    factor = torch.linalg.cholesky(jacrev(grad(total))(theta, everything))
    theta = theta - torch.cholesky_solve(grad(total)(theta, everything).unsqueeze(1), factor).squeeze(1)
    with torch.no_grad():
        for p, value in zip(model.parameters(), from_vector(theta, like).values()):
            p.copy_(value)

    w = 1 - torch.eye(N, dtype=x.dtype)[:LEFT_OUT]
    thetas, steps = theta.expand(LEFT_OUT, -1).clone(), torch.ones(LEFT_OUT, 1, dtype=x.dtype)
    losses = vmap(total)(thetas, w)
    for _ in range(150):  # Newton's steps with a fixed Hessian, each as long as it still goes down
        direction = torch.cholesky_solve(vmap(grad(total))(thetas, w).mT, factor).mT
        tried = vmap(total)(thetas - steps * direction, w)
        better = tried <= losses
        thetas = torch.where(better[:, None], thetas - steps * direction, thetas)
        losses = torch.where(better, tried, losses)
        steps = torch.where(better[:, None], (1.5 * steps).clamp_max(1.0), 0.5 * steps)
    assert vmap(grad(total))(thetas, w).norm(dim=1).quantile(0.9) < 1e-4
    there = zip(thetas, x[:LEFT_OUT])
    outputs = [functional_call(model, from_vector(t, like), (a,)) for t, a in there]
    return model, x, y, torch.stack(outputs).detach()


def changes(retrained, structure, deflate):
    """Estimated and true changes of probabilities, and the estimates."""
    model, x, y, true = retrained
    posterior = po.laplace(model, (x, y), structure=structure, prior_precision=DELTA)
    found = leave_one_out(model, posterior, (x, y), deflate=deflate)
    p = model(x[:LEFT_OUT]).detach().softmax(-1)
    estimated, real = found.predictions[:LEFT_OUT] - p, true.softmax(-1) - p
    return np.corrcoef(estimated.flatten(), real.flatten())[0, 1], found


def test_small_changes_of_bent_outputs_are_in_doubt():
    """Nine changes of mean 0.1 and standard error 0.1: one standard error, below the limit of 1.5."""
    sure = Reliability(0.1, 3.0, "full", deflated=True, warning="", rest=1e-8)
    around = torch.tensor([1.0, -1.0] * 4 + [0.0], dtype=torch.float64)
    changes = 0.1 + 0.3 * around / around.std()
    assert sure.about(changes, bend=0.29) is sure  # linear enough
    assert sure.about(changes[:1], bend=0.9) is sure  # one example has no spread
    assert not sure.about(torch.tensor([1.0, -1.0]), bend=0.9).clear  # two have one
    assert sure.about(changes + 0.051, bend=0.9) is sure  # 1.51 standard errors
    doubted = sure.about(changes + 0.049, bend=0.9)
    assert "standard errors" in doubted.warning
    assert not doubted.ranks


def test_full_gauss_newton_deflated(retrained):
    correlation, found = changes(retrained, "full", "auto")
    assert correlation > 0.99
    assert found.reliability.deflated
    assert found.reliability.reliable


def test_kronecker_first_order(retrained):
    correlation, found = changes(retrained, "kron", "auto")
    assert correlation > 0.95
    assert not found.reliability.deflated


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_deflating_what_does_not_contain_the_examples_breaks(retrained, structure):
    correlation, found = changes(retrained, structure, True)
    assert correlation < 0.5
    assert "does not contain" in found.reliability.warning


def test_more_effective_parameters_than_examples_leave_rankings():
    q = Diagonal({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    posterior = Posterior(q, prior=q, n=10, ess=40, likelihood="gaussian")
    found = Reliability.of(posterior, 0.1, 11.0, deflated=False)
    assert "11 effective parameters, more than the 10 examples" in found.warning
    assert found.ranks
    assert not found.reliable
    group = Reliability.of(posterior, 0.1, 9.0, deflated=False, share=0.1)
    assert "the effect of a group" in group.warning
    assert not group.ranks


@pytest.mark.parametrize(
    ("rest", "words", "ranks"),
    [
        (9e-6, "", True),
        (1e-5, "not its size", True),
        (9e-4, "not its size", True),
        (1e-3, "direction is unknown", False),
    ],
)
def test_what_a_checked_estimate_leaves_decides_what_to_trust(rest, words, ranks):
    q = Diagonal({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    posterior = Posterior(q, prior=q, n=10, ess=10, likelihood="gaussian")
    found = Reliability.of(posterior, 0.1, 3.0, deflated=False, share=0.1, rest=rest)
    assert found.ranks == ranks
    assert bool(found.warning) == bool(words)
    assert words in found.warning
