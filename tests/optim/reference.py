"""IVON's equations, transcribed in float64 NumPy, and small models to try them on."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from networks import perceptron


@dataclass
class Reference:
    """One parameter under IVON; every line is one line of the paper."""

    mean: np.ndarray
    lr: float
    ess: float
    hess_init: float = 1.0
    betas: tuple = (0.9, 0.99999)
    weight_decay: float = 1e-4
    clip_radius: float = np.inf
    debias: bool = True
    rescale_lr: bool = True
    prior_mean: float = 0.0
    steps: int = 0

    def __post_init__(self):
        self.mean = np.array(self.mean, dtype=np.float64)
        self.momentum = np.zeros_like(self.mean)
        self.hessian = np.full_like(self.mean, self.hess_init)

    def estimate(self, sample, gradient):
        """ĥ of one sample."""
        return self.ess * (self.hessian + self.weight_decay) * (np.float64(sample) - self.mean) * gradient

    def step(self, gradient, estimate=None):
        beta1, beta2 = self.betas
        delta, h = self.weight_decay, self.hessian
        self.steps += 1
        self.momentum = beta1 * self.momentum + (1 - beta1) * gradient
        if estimate is not None:
            correction = 0.5 * (1 - beta2) ** 2 * (h - estimate) ** 2 / (h + delta)
            self.hessian = beta2 * h + (1 - beta2) * estimate + correction
        momentum = self.momentum / (1 - beta1**self.steps) if self.debias else self.momentum
        direction = (momentum + delta * (self.mean - self.prior_mean)) / (self.hessian + delta)
        alpha = self.lr * (self.hess_init + delta) if self.rescale_lr else self.lr
        self.mean = self.mean - alpha * np.clip(direction, -self.clip_radius, self.clip_radius)


def array(tensor):
    return tensor.detach().double().numpy().copy()


def network(seed=0):
    torch.manual_seed(seed)
    return perceptron(4, 6, 3)


def data(n=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def loss(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs), targets)
