"""Newton's method and Laplace's approximation beside statsmodels and scikit-learn, ridge beside scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity import algorithms
from posterity.gradients import LinearLoss
from posterity.table.comparisons._data import classification, furthest, logistic_loss, normal


def newton() -> float:
    """Each Newton iterate of a logistic regression."""
    import statsmodels.api as sm

    X, y = classification()
    ours: list[Any] = []
    loss = LinearLoss(inputs=X, targets=y, likelihood="bernoulli")
    algorithms.newton().run(torch.zeros(3, dtype=torch.float64), loss, steps=6, callback=ours.append)
    model, theirs = sm.Logit(y.numpy(), X.numpy()), []
    for steps in range(1, 7):
        options = {"method": "newton", "ridge_factor": 0, "tol": 0.0, "warn_convergence": False, "disp": False}
        theirs.append(model.fit(start_params=np.zeros(3), maxiter=steps, **options).params)
    return furthest(*((seen.q.mean, there) for seen, there in zip(ours, theirs, strict=True)))


def laplace() -> float:
    """Mode and Hessian of a logistic regression."""
    from sklearn.linear_model import LogisticRegression

    X, y = classification()
    q = algorithms.laplace(torch.zeros(3, dtype=torch.float64), logistic_loss())
    options = {"C": 1.0, "fit_intercept": False, "solver": "newton-cholesky", "tol": 1e-14, "max_iter": 100}
    mode = LogisticRegression(**options).fit(X.numpy(), y.numpy()).coef_[0]
    p = 1.0 / (1.0 + np.exp(-X.numpy() @ mode))
    hessian = X.numpy().T @ (X.numpy() * (p * (1.0 - p))[:, None]) + np.eye(3)
    return furthest((q.mean, mode), (q.precision, hessian))


def linear_regression() -> float:
    """Mean and precision with four features."""
    return _ridge(normal(30, 4, seed=0), normal(30, seed=1), penalty=0.5)[0]


def polynomial_regression() -> float:
    """Mean and precision with the powers up to 15, divided by the condition number."""
    inputs = torch.linspace(-1.0, 1.0, 40, dtype=torch.float64)
    targets = torch.sin(4.0 * inputs) + 0.1 * normal(40, seed=0)
    powers = torch.stack([inputs**k for k in range(16)], dim=-1)
    deviation, conditioning = _ridge(powers, targets, penalty=1e-6)
    return deviation / conditioning


def _ridge(X: Tensor, y: Tensor, penalty: float) -> tuple[float, float]:
    """The largest deviation of mean and precision, relative to the largest entry; the condition number."""
    from sklearn.linear_model import Ridge

    q = algorithms.linear_regression(X, y, prior_precision=2.0 * penalty, noise_precision=2.0)
    mean = Ridge(alpha=penalty, solver="cholesky", fit_intercept=False).fit(X.numpy(), y.numpy()).coef_
    precision = 2.0 * (X.numpy().T @ X.numpy() + penalty * np.eye(X.shape[1]))
    a, b = np.abs(mean).max(), precision.max()
    off = furthest((q.mean / a, mean / a), (q.precision / b, precision / b))
    return off, float(np.linalg.cond(precision))
