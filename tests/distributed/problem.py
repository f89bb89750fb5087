"""A small classification in float64, the same on every process; 13 rows and 3 rows do not divide by 2 or 4."""

import torch
from torch.nn.functional import cross_entropy

from networks import perceptron
from posterity.optim import IVON

N = 24
SETTINGS = {"lr": 0.3, "ess": 100.0, "hess_init": 0.5, "betas": (0.9, 0.8), "weight_decay": 1e-2, "seed": 7}


def network():
    torch.manual_seed(0)
    return perceptron(7, 13, 3).double()


def examples(step, rank=0, world=1):
    """This rank's part of the batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(N, 7, generator=generator).double(), torch.randint(3, (N,), generator=generator)
    part = slice(rank * N // world, (rank + 1) * N // world)
    return x[part], y[part]


def loss(model, batch):
    x, y = batch
    return cross_entropy(model(x), y)


def ivon(model, **settings):
    return IVON(model.named_parameters(), **{**SETTINGS, **settings})
