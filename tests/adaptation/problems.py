"""Small problems, and their optima by independent code."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import nn

from networks import perceptron
from posterity.batches import Batch
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, trainable


def logistic(n, d=4, seed=0, shift=0.0):
    """Inputs (n, d) and labels (n, 1) of a logistic regression."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) + shift
    y = (rng.uniform(size=n) < expit(x @ np.linspace(-1, 1.5, d))).astype(float)
    return torch.tensor(x), torch.tensor(y).unsqueeze(1)


def classes(n, d=4, k=3, seed=0):
    """Inputs (n, d) and labels in 0..k−1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    w = np.random.default_rng(99).normal(size=(k, d))
    y = np.array([rng.choice(k, p=softmax(row)) for row in x @ w.T])
    return torch.tensor(x), torch.tensor(y)


def newton_logistic(x, y, precision, start=None, linear=None):
    """The minimum of Σ log(1 + e^f) − y f + ½ wᵀAw − bᵀw in numpy, and the Hessian there (A a number or a matrix)."""
    x, y = x.numpy(), y.numpy()[:, 0]
    d = x.shape[1]
    a = precision * np.eye(d) if np.isscalar(precision) else np.asarray(precision)
    b = np.zeros(d) if linear is None else linear
    w = np.zeros(d) if start is None else start
    for _ in range(100):
        p = expit(x @ w)
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + a
        step = np.linalg.solve(hessian, x.T @ (p - y) + a @ w - b)
        w = w - step
        if np.abs(step).max() < 1e-15:
            break
    p = expit(x @ w)
    return w, x.T @ (x * (p * (1 - p))[:, None]) + a


def newton_softmax(x, y, precision, k, start=None):
    """The minimum of cross-entropy + ½ δ‖W‖² in numpy, W (k, d)."""
    x, y = x.numpy(), np.eye(k)[y.numpy()]
    d = x.shape[1]
    w = np.zeros(k * d)
    for _ in range(100):
        p = softmax(x @ w.reshape(k, d).T, axis=1)
        g = ((p - y).T @ x).ravel() + precision * w
        hessian = precision * np.eye(k * d)
        for row, q in zip(x, p):
            hessian += np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row))
        step = np.linalg.solve(hessian, g)
        w = w - step
        if np.abs(step).max() < 1e-15:
            break
    return w.reshape(k, d)


def glm(weight, x, *, likelihood="bernoulli", precision=1.0, n=None, structure="full"):
    """A linear model at some weights (K, d), with its Laplace posterior written out in numpy."""
    weight = torch.as_tensor(np.asarray(weight), dtype=torch.float64)
    weight = weight.reshape(1, -1) if weight.ndim == 1 else weight
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weight)
    p = torch.sigmoid(x @ weight.T) if likelihood == "bernoulli" else torch.softmax(x @ weight.T, 1)
    if likelihood == "bernoulli":
        h = x.T @ (x * p * (1 - p))
    else:
        h = torch.zeros(weight.numel(), weight.numel(), dtype=torch.float64)
        for row, q in zip(x, p):
            h += torch.kron(torch.diag(q) - torch.outer(q, q), torch.outer(row, row))
    mean = snapshot(trainable(model))
    full = h + precision * torch.eye(len(h), dtype=torch.float64)
    shape = (
        Full(mean, full) if structure == "full" else Diagonal(mean, {"weight": full.diagonal().reshape(weight.shape)})
    )
    prior = Diagonal.isotropic(mean, precision)
    count = len(x) if n is None else n
    return model, Posterior.of(model, shape, prior=prior, n=count, ess=count, likelihood=likelihood)


def tanh_network(x, y, *, precision=1.0, hidden=6, seed=0, start=None):
    """A tanh network for binary labels, in float64, at an optimum of its objective (by L-BFGS, from `start`)."""
    torch.manual_seed(seed)
    model = perceptron(x.shape[1], hidden, 1).double()
    if start is not None:
        model.load_state_dict(start.state_dict())
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=5000, tolerance_grad=1e-13, tolerance_change=1e-18, line_search_fn="strong_wolfe"
    )  # fmt: skip

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="sum")
        loss = loss + 0.5 * precision * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model


def network(seed=0):
    """A perceptron for three classes, in float64."""
    torch.manual_seed(seed)
    return perceptron(4, 5, 3).double()


def some(n=30):
    """Inputs and labels of three classes as a batch."""
    x, y = classes(n)
    return Batch(x, y, torch.arange(n))


def around(model, mean=0.3, precision=2.0):
    """A prior with one mean and one precision for all weights."""
    return Diagonal(
        {k: torch.full_like(p, mean) for k, p in trainable(model).items()},
        dict.fromkeys(trainable(model), torch.tensor(precision)),
    )
