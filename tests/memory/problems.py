"""Problems whose answers are known: closed forms, other packages, or true retraining by Newton's method."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, trainable


def diabetes() -> tuple[Tensor, Tensor]:
    """Standardised regression data with an intercept column first, and targets (N, 1)."""
    x, y = load_diabetes(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    inputs = torch.cat([torch.ones(len(x), 1), torch.tensor(x)], dim=1)
    return inputs, torch.tensor((y - y.mean()) / y.std()).unsqueeze(1)


def ridge(x: Tensor, y: Tensor, delta: float, weights: Tensor | None = None) -> Tensor:
    """Weighted ridge regression in closed form, (d,)."""
    w = torch.ones(len(x), 1, dtype=x.dtype) if weights is None else weights.unsqueeze(1)
    return torch.linalg.solve(x.T @ (w * x) + delta * torch.eye(x.shape[1], dtype=x.dtype), x.T @ (w * y)).squeeze(1)


def linear(weights: Tensor) -> nn.Linear:
    """A linear model without bias at given weights, (K, d) or (d,)."""
    weights = weights.reshape(-1, weights.shape[-1])
    model = nn.Linear(weights.shape[1], weights.shape[0], bias=False).to(weights.dtype)
    with torch.no_grad():
        model.weight.copy_(weights)
    return model


def least_squares(x: Tensor, y: Tensor, precision: float) -> tuple[nn.Linear, Posterior]:
    """Ordinary least squares with noise of a known precision: a posterior under a flat prior."""
    from posterity.likelihoods import GaussianLikelihood

    model = linear(ridge(x, y, 0.0))
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 0.0)
    gaussian = Full(mean, precision * x.T @ x)
    kind = GaussianLikelihood(precision)
    return model, Posterior.of(model, gaussian, prior=prior, n=len(x), ess=len(x), likelihood=kind)


def breast_cancer() -> tuple[Tensor, Tensor]:
    """Standardised features with an intercept column, and labels (N, 1) for one logit."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    return torch.cat([torch.ones(len(x), 1), torch.tensor(x)], dim=1), torch.tensor(y).unsqueeze(1)


def digits(n: int) -> tuple[Tensor, Tensor]:
    """The first n digits after shuffling (the file is not in random order), pixels in [0, 1], an intercept column."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:n]
    return torch.cat([torch.ones(n, 1), torch.tensor(x / 16)[order]], dim=1), torch.tensor(y)[order]


def newton(x: Tensor, onehot: Tensor, delta: float, start: Tensor, weights: Tensor | None = None) -> Tensor:
    """Minimise Σ w CE + δ/2‖W‖² over W (K, d), for a batch of weightings (B, N): the truth to compare with.

    One column of `onehot` means a single logit, several a softmax.
    """
    w = torch.ones(1, len(x), dtype=x.dtype) if weights is None else weights
    k, d = start.shape[-2:]
    theta = start.expand(len(w), k, d).clone()
    eye = delta * torch.eye(k * d, dtype=x.dtype)
    for _ in range(30):
        f = x @ theta.mT  # (B, N, K)
        p = torch.sigmoid(f) if k == 1 else torch.softmax(f, -1)
        gradient = torch.einsum("bn,bnk,nd->bkd", w, p - onehot, x) + delta * theta
        curvature = torch.diag_embed(p * (1 - p)) if k == 1 else torch.diag_embed(p) - p[..., None] * p[..., None, :]
        half = (w[..., None, None] * curvature).flatten(2).mT @ (x[:, :, None] * x[:, None, :]).flatten(1)
        hessian = half.view(-1, k, k, d, d).transpose(2, 3).reshape(-1, k * d, k * d) + eye
        step = torch.linalg.solve(hessian, gradient.flatten(1)).view_as(theta)
        theta = theta - step
        if step.abs().max() < 1e-10:
            return theta
    raise AssertionError("Newton's method did not converge")
