"""Small posteriors whose information can be enumerated, and dense linear algebra to hold closed forms to."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

import posterity as po
from networks import perceptron
from posterity.posterior import Diagonal, Ensemble, Posterior
from posterity.trees import snapshot, trainable


def ensemble_of(probs: Tensor) -> tuple[nn.Module, Posterior, Tensor]:
    """A model, an ensemble and a pool with the class probabilities probs (N, S, K), one member for each draw."""
    n, draws, k = probs.shape
    model = nn.Linear(n, k, bias=False).double()
    members = [{"weight": probs[:, s].log().T.contiguous().double()} for s in range(draws)]
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, Ensemble(members), prior=prior, n=1, ess=1, likelihood="categorical")
    return model, posterior, torch.eye(n, dtype=torch.float64)


def enumerated(probs: Tensor) -> float:
    """I(y_1..y_b; draw) from probabilities (b, S, K), by a loop over every configuration of the labels."""
    b, draws, k = probs.shape
    joint = 0.0
    for labels in itertools.product(range(k), repeat=b):
        p = sum(math.prod(probs[i, s, y].item() for i, y in enumerate(labels)) for s in range(draws)) / draws
        joint -= p * math.log(p) if p > 0 else 0.0
    noise = -sum(p * math.log(p) / draws for i in range(b) for s in range(draws) for p in probs[i, s].tolist() if p > 0)
    return joint - noise


def classifier(structure: str, seed: int = 0) -> tuple[nn.Module, Posterior, Tensor]:
    """A small network of three classes in float64, its Laplace posterior, and a pool."""
    torch.manual_seed(seed)
    x, y = torch.randn(40, 3).double(), torch.arange(40) % 3
    model = perceptron(3, 5, 3).double()
    return model, po.laplace(model, (x, y), structure=structure, prior_precision=1.0), torch.randn(12, 3).double()


def dense_covariance(model: nn.Module, posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """J Σ Jᵀ over all examples and outputs, (N·K, N·K), and Λ as a block-diagonal matrix, from autograd."""
    names = list(posterior.covariance().shapes)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(vector: Tensor) -> Tensor:
        pieces = vector.split([weights[name].numel() for name in names])
        tree = {name: piece.reshape(weights[name].shape) for name, piece in zip(names, pieces)}
        return torch.func.functional_call(model, {**weights, **tree}, x).reshape(-1)

    flat = torch.cat([weights[name].reshape(-1) for name in names])
    jacobian = torch.autograd.functional.jacobian(outputs, flat)
    sigma = posterior.covariance(untempered=True).matrix
    blocks = posterior.likelihood.curvature(model(x).detach())
    return jacobian @ sigma @ jacobian.T, torch.block_diag(*blocks)
