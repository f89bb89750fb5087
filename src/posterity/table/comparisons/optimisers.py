"""First-order optimisers beside torch.optim, dropout beside torch.nn.Dropout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from posterity import algorithms
from posterity.algorithms import Algorithm
from posterity.gradients import LinearLoss
from posterity.table.comparisons._data import N, classification, furthest, logistic_loss, normal

STEPS = 10


def _against(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], algorithm: Algorithm[Any], losses: Iterable[LinearLoss]
) -> float:
    """The largest distance between the two paths, over all steps."""
    start = normal(3, seed=5)
    weights = start.clone().requires_grad_()
    optimizer, theirs = make([weights]), []
    losses = list(itertools.islice(losses, STEPS))
    for loss in losses:
        optimizer.zero_grad()
        X, y = loss.inputs, loss.targets.squeeze(-1)
        # Written out again, so that the loss is not the package's own.
        data = torch.nn.functional.binary_cross_entropy_with_logits(X @ weights, y, reduction="sum")
        (N / len(y) * data + 0.5 * weights @ weights).backward()
        optimizer.step()
        theirs.append(weights.detach().clone())
    ours: list[Any] = []
    algorithm.run(start, losses, STEPS, callback=ours.append)
    return furthest(*((seen.q.mean, there) for seen, there in zip(ours, theirs, strict=True)))


def _whole() -> Iterable[LinearLoss]:
    return itertools.repeat(logistic_loss())


def gradient_descent() -> float:
    """The path of torch.optim.SGD on all data."""
    return _against(lambda p: torch.optim.SGD(p, lr=0.05), algorithms.gradient_descent(0.05), _whole())


def sgd() -> float:
    """The path of torch.optim.SGD on minibatches."""
    batches = logistic_loss().minibatches(8)
    return _against(lambda p: torch.optim.SGD(p, lr=0.02), algorithms.sgd(0.02), batches)


def momentum() -> float:
    """The path of torch.optim.SGD with momentum."""
    batches = logistic_loss().minibatches(8)
    return _against(lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9), algorithms.momentum(0.02, 0.9), batches)


def rmsprop() -> float:
    """The path of torch.optim.RMSprop."""
    batches = logistic_loss().minibatches(8)
    return _against(lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9), algorithms.rmsprop(0.01, 0.9), batches)


def adam() -> float:
    """The path of torch.optim.Adam."""
    batches = logistic_loss().minibatches(8)
    return _against(lambda p: torch.optim.Adam(p, lr=0.05), algorithms.adam(0.05), batches)


def adamw() -> float:
    """The path of torch.optim.AdamW."""
    batches = logistic_loss().minibatches(8)
    return _against(
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1), algorithms.adamw(0.05, weight_decay=0.1), batches
    )


def dropout() -> float:
    """The path of gradient steps through torch.nn.Dropout, with the same random masks."""
    X, y = classification(d=6)
    loss = LinearLoss(inputs=X, targets=y, likelihood="bernoulli")
    start, layer = normal(6, seed=3), torch.nn.Dropout(p=0.3)
    weights, theirs = start.clone().requires_grad_(), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        for _ in range(STEPS):
            logits = X @ layer(weights)
            value = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            (gradient,) = torch.autograd.grad(value, weights)
            weights = (weights - 0.02 * gradient).detach().requires_grad_()
            theirs.append(weights.detach())
    ours: list[Any] = []
    generator = torch.Generator().manual_seed(11)
    algorithms.dropout(0.02, keep=0.7, generator=generator).run(start, loss, STEPS, callback=ours.append)
    return furthest(*((seen.q.mean, there) for seen, there in zip(ours, theirs, strict=True)))


def dropout_exact() -> float:
    """The expectation over all masks, which for squared errors has a closed form."""
    # E_z ½|y − X(z/π ∘ m)|² = ½|y − Xm|² + ½(1−π)/π Σⱼ mⱼ²|xⱼ|²: dropout is an adaptive ridge regression.
    X, y, start, keep = normal(20, 5, seed=1), normal(20, seed=2), normal(5, seed=3), 0.7
    loss = LinearLoss(inputs=X, targets=y, likelihood="gaussian")
    q = algorithms.dropout(0.01, keep=keep, masks=None).run(start, loss, steps=1)
    gradient = X.T @ (X @ start - y) + (1 - keep) / keep * (X**2).sum(0) * start
    return furthest((q.mean, start - 0.01 * gradient))
