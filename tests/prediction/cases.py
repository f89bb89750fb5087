"""One small classifier with a posterior of every structure, and the plain loop that predictions are held to."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from posterity.likelihoods import likelihood as named
from posterity.posterior import Diagonal, Dropout, Ensemble, Full, Kronecker, LastLayer, LowRank, Mixture, Posterior
from posterity.trees import snapshot, trainable

STRUCTURES = ("diagonal", "full", "kronecker", "last_layer", "low_rank", "mixture", "ensemble")


class Case(NamedTuple):
    model: nn.Module
    posterior: Posterior
    inputs: torch.Tensor


def classifier():
    """Linear layers around a batch norm with statistics of its own and a dropout layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    model(torch.randn(50, 4, dtype=torch.float64))
    return model


def structure(kind, mean):
    generator = torch.Generator().manual_seed(1)
    precision = {name: 5 + 20 * torch.rand(t.shape, generator=generator) for name, t in mean.items()}
    head = {name: mean[name] for name in ("4.weight", "4.bias")}
    if kind == "diagonal":
        return Diagonal(mean, precision)
    if kind == "full":
        root = torch.randn(63, 63, generator=generator, dtype=torch.float64)
        return Full(mean, root @ root.T + 20 * torch.eye(63, dtype=torch.float64))
    if kind == "kronecker":
        factors = {}
        for name, t in mean.items():
            sides = [t.shape[0], t.shape[1]] if t.ndim == 2 else [t.shape[0]]
            roots = [torch.randn(side, side + 2, generator=generator, dtype=torch.float64) for side in sides]
            factors[name] = tuple(root @ root.T for root in roots)
        return Kronecker(mean, factors, {name: torch.tensor(5.0) for name in mean})
    if kind == "last_layer":
        inner = Diagonal(head, {name: precision[name] for name in head})
        return LastLayer(inner, {name: t for name, t in mean.items() if name not in head})
    if kind == "low_rank":
        rows = {name: 0.1 * torch.randn(3, *t.shape, generator=generator).double() for name, t in mean.items()}
        return LowRank(mean, {name: 1 / p.double() for name, p in precision.items()}, rows)
    members = [
        {name: t + 0.3 * torch.randn(t.shape, generator=generator) for name, t in mean.items()} for _ in range(5)
    ]
    if kind == "mixture":
        return Mixture(torch.tensor([0.3, 0.7]), [Diagonal(members[0], precision), Diagonal(members[1], precision)])
    if kind == "ensemble":
        return Ensemble(members)
    return Dropout(mean, {"3": 0.5})


def make_case(kind):
    model = classifier()
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(model, structure(kind, mean), prior=prior, n=50, ess=50, likelihood="categorical")
    inputs = torch.randn(23, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Case(model.train(), posterior, inputs)


def plain_loop(case, samples, seed=0):
    """Logits (samples, N, K) by writing one draw after the other into a copy of the model."""
    model = copy.deepcopy(case.model).eval()
    outputs = []
    with torch.no_grad():
        for k in range(samples):
            case.posterior.apply(model, case.posterior.sample(k, seed))
            outputs.append(model(case.inputs))
    return torch.stack(outputs)


def regression(likelihood="gaussian", **settings):
    """Bayesian linear regression with a full posterior: everything about it is known in closed form."""
    model = nn.Linear(3, 2).double()
    mean = {
        "weight": torch.tensor([[1.0, -0.5, 0.2], [0.3, 0.1, -0.4]]).double(),
        "bias": torch.tensor([0.2, -0.1]).double(),
    }
    root = torch.randn(8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    full = Full(mean, 4 * root @ root.T + 3 * torch.eye(8, dtype=torch.float64))
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(model, full, prior=prior, n=40, ess=40, likelihood=named(likelihood, **settings))
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows = torch.zeros(12, 2, 8, dtype=torch.float64)  # J: weights row by row, then biases
    rows[:, 0, :3], rows[:, 1, 3:6], rows[:, 0, 6], rows[:, 1, 7] = inputs, inputs, 1.0, 1.0
    covariance = rows @ torch.linalg.inv(full.precision) @ rows.mT
    f = inputs @ mean["weight"].T + mean["bias"]
    return Case(model, posterior, inputs), f, covariance
