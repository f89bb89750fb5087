"""Binary weights beside a sign-forward autograd loop and the enumeration of all sign vectors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity import algorithms
from posterity.gradients import DataLoss
from posterity.table.comparisons._data import furthest, normal

D = 6


def _task() -> tuple[Tensor, Tensor, DataLoss]:
    """A small network with binary weights, whose loss is no polynomial of low degree in them."""
    X, y = normal(12, 3, seed=0), normal(12, seed=1)

    def network(weights: Tensor, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ weights.reshape(3, 2)).sum(-1, keepdim=True)

    return X, y, DataLoss(inputs=X, targets=y.unsqueeze(-1), likelihood="gaussian", model=network)


class _Sign(torch.autograd.Function):
    """Sign forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, latent: Tensor) -> Tensor:
        return torch.where(latent >= 0, 1.0, -1.0).double()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def straight_through() -> float:
    """Ten steps of a network with binary weights, signs forward and the identity backward."""
    X, y, loss = _task()
    latent = 0.1 * normal(D, seed=2)
    ours: list[Any] = []
    algorithms.straight_through(0.05).run(latent, loss, 10, callback=ours.append)
    weights, theirs = latent.clone().requires_grad_(), []
    optimizer = torch.optim.SGD([weights], lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        signs: Tensor = _Sign.apply(weights)  # type: ignore[no-untyped-call]
        residual = torch.tanh(X @ signs.reshape(3, 2)).sum(-1) - y
        (0.5 * residual @ residual).backward()
        optimizer.step()
        theirs.append(weights.detach().clone())
    return furthest(*((seen.q.natural[0], there) for seen, there in zip(ours, theirs, strict=True)))


def _by_hand(natural: np.ndarray) -> np.ndarray:
    """∂E_q[ℓ]/∂μ of the task, summed over all sign vectors in numpy."""
    X, y = (part.numpy() for part in _task()[:2])
    mean, slope = np.tanh(natural), np.zeros(D)
    for signs in itertools.product((-1.0, 1.0), repeat=D):
        theta = np.array(signs)
        residual = np.tanh(X @ theta.reshape(3, 2)).sum(-1) - y
        value = 0.5 * residual @ residual + 0.5 * len(y) * math.log(2 * math.pi)
        probability = (1.0 + theta * mean) / 2.0
        for j in range(D):
            slope[j] += value * theta[j] / 2.0 * np.delete(probability, j).prod()
    return slope


def bernoulli_rule() -> float:
    """Five steps of the exact rule, each a sum over all sign vectors."""
    _, _, loss = _task()
    natural = 0.5 * normal(D, seed=2).numpy()
    ours: list[Any] = []
    algorithms.bernoulli_rule(0.1).run(torch.as_tensor(natural), loss, 5, callback=ours.append)
    theirs = []
    for _ in range(5):
        natural = 0.9 * natural - 0.1 * _by_hand(natural)
        theirs.append(natural)
    return furthest(*((seen.q.natural[0], there) for seen, there in zip(ours, theirs, strict=True)))


def bayesbinn() -> float:
    """In standard errors of the Monte Carlo average, at a temperature whose bias is below them."""
    _, _, loss = _task()
    natural, repeats = 0.5 * normal(D, seed=2), 200
    generator = torch.Generator().manual_seed(0)
    algorithm = algorithms.bayesbinn(0.1, temperature=0.05, samples=200, generator=generator)
    steps = torch.stack([algorithm.run(natural, loss, steps=1).natural[0] for _ in range(repeats)])
    exact = 0.9 * natural - 0.1 * torch.as_tensor(_by_hand(natural.numpy()))
    return ((steps.mean(0) - exact).abs() / (steps.std(0) / math.sqrt(repeats))).max().item()
