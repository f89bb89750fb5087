"""The covariance that an optimizer carries while it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.curvature import Covariance, DiagonalCovariance, FullCovariance
from posterity.errors import expected
from posterity.optim import VariationalOptimizer
from posterity.optim._points import Point
from posterity.trees import Tree, trainable


def covariance_of(optimizer: Optimizer, model: nn.Module, n: int) -> Covariance:
    """The covariance at temperature 1 that an optimizer's state implies.

    - Variational optimizers have one of their own, (ess (h + δ))⁻¹, here with n in place of ess.
    - Adam's squared gradients v estimate the curvature: 1/(n √v + δ), δ = n · weight decay, but at least 1, the
      precision of a standard normal prior.
    - SGD has a fixed Gaussian of variance lr/n. Self-influences eᵀVe are then lr‖∇ℓ‖²/n, the terms of TracIn.

    Before the first step of Adam there is no state yet, and it counts as SGD; so do SAM and others that train a point.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, p in trainable(model).items():
        if id(p) not in groups:
            raise expected("optimizer", f"the model's parameter {name!r}", "other parameters")
    if isinstance(optimizer, VariationalOptimizer) and not isinstance(optimizer, Point):
        covariance = optimizer.structure(trainable(model)).covariance()
        return _scaled(covariance, {name: groups[id(p)]["ess"] / n for name, p in trainable(model).items()})
    variance: Tree = {}
    for name, p in trainable(model).items():
        group, state = groups[id(p)], optimizer.state.get(p, {})
        squares: Tensor | None = state.get("exp_avg_sq")
        if squares is None:
            variance[name] = p.detach().new_full(p.shape, float(group["lr"]) / n)
        else:
            variance[name] = 1 / (n * squares.sqrt() + max(n * float(group["weight_decay"]), 1.0))
    return DiagonalCovariance(variance)


def _scaled(covariance: Covariance, scales: Mapping[str, float]) -> Covariance:
    """A covariance times a number for each parameter."""
    if isinstance(covariance, FullCovariance):
        sizes = torch.tensor([math.prod(shape) for shape in covariance.shapes.values()])
        roots = torch.tensor([scales[name] ** 0.5 for name in covariance.shapes]).repeat_interleave(sizes)
        return replace(covariance, matrix=covariance.matrix * torch.outer(roots, roots).to(covariance.matrix))
    return replace(covariance, variance={name: v * scales[name] for name, v in covariance.variance.items()})
