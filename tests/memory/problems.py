"""Problems whose answers are known: closed forms, other packages, or true retraining by Newton's method."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import Tensor, nn

from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, trainable
from small_data import handwritten_digits


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
    x, y = handwritten_digits()
    return torch.cat([torch.ones(n, 1), x[:n].double()], dim=1), y[:n]


def newton(
    x: Tensor, onehot: Tensor, delta: float, start: Tensor, weights: Tensor | None = None, *, fixed: bool = False
) -> Tensor:
    """Minimise Σ w CE + δ/2‖W‖² over W (K, d) for a batch of weightings (B, N): the truth to compare with.

    One column of `onehot` means a single logit, several a softmax. With `fixed`, the Hessian stays that of the start
    with all examples: more steps, but hundreds of fits are a few matrix products.
    """
    w = torch.ones(1, len(x), dtype=x.dtype) if weights is None else weights
    theta = start.expand(len(w), *start.shape[-2:]).clone()
    factor = torch.linalg.cholesky(hessian(x, start.reshape(1, *start.shape[-2:]), delta, torch.ones_like(w[:1])))
    for _ in range(100):
        gradient = (w.unsqueeze(-1) * (probabilities(x, theta) - onehot)).mT @ x + delta * theta
        if gradient.abs().max() < 1e-9:
            return theta
        if not fixed:
            factor = torch.linalg.cholesky(hessian(x, theta, delta, w))
        flat = gradient.reshape(len(w), -1)
        step = torch.cholesky_solve(flat.mT, factor[0]).mT if fixed else torch.cholesky_solve(flat[..., None], factor)
        theta = theta - step.reshape(theta.shape)
    raise AssertionError("Newton's method did not converge")


def probabilities(x: Tensor, theta: Tensor) -> Tensor:
    """Class probabilities (B, N, K)."""
    f = x @ theta.mT
    return torch.sigmoid(f) if f.shape[-1] == 1 else torch.softmax(f, -1)


def hessian(x: Tensor, theta: Tensor, delta: float, w: Tensor) -> Tensor:
    """The Hessians of that objective, (B, K·d, K·d)."""
    _, k, d = theta.shape
    p = probabilities(x, theta)
    curvature = torch.diag_embed(p * (1 - p)) if k == 1 else torch.diag_embed(p) - p[..., None] * p[..., None, :]
    pairs = (x[:, :, None] * x[:, None, :]).flatten(1)
    blocks = (w[..., None] * curvature.flatten(2)).mT @ pairs  # (B, K², d²)
    dense = blocks.view(-1, k, k, d, d).transpose(2, 3).reshape(-1, k * d, k * d)
    return dense + delta * torch.eye(k * d, dtype=x.dtype)


def left_out(n: int, examples: Tensor) -> Tensor:
    """Weightings (B, n), each without one of the examples."""
    weights = torch.ones(len(examples), n, dtype=torch.float64)
    weights[torch.arange(len(examples)), examples] = 0.0
    return weights
