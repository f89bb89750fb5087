"""Small problems whose mean-field posterior is known exactly or by quadrature."""

import numpy as np
import torch
from scipy.optimize import minimize

PRIOR_PRECISION = 2.0
COPIES = 200  # independent runs in one tensor: their average is the expectation, their spread the Monte Carlo error


def averages(step, steps):
    """What each step returns, averaged over the last half of the steps and over the copies."""
    found = [step(t) for t in range(steps)][steps // 2 :]
    return [torch.stack(values).mean(0).mean(0) for values in zip(*found, strict=True)]


def linear_data(n=60, seed=0):
    """Inputs, targets, and the exact Gaussian posterior's mean and precision diagonal (unit noise)."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.5]])
    targets = inputs @ np.array([1.0, -0.5, 0.3]) + rng.normal(size=n)
    precision = inputs.T @ inputs + PRIOR_PRECISION * np.eye(3)
    mean = np.linalg.solve(precision, inputs.T @ targets)
    return torch.tensor(inputs), torch.tensor(targets), torch.tensor(mean), torch.tensor(np.diag(precision).copy())


def logistic_data(n=400, seed=0):
    """Inputs and labels, and mean and precision of the best diagonal Gaussian, by quadrature."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    labels = (rng.random(n) < 1 / (1 + np.exp(-inputs @ np.array([1.0, -1.0])))).astype(float)
    mean, precision = mean_field_logistic(inputs, labels)
    return torch.tensor(inputs), torch.tensor(labels), torch.tensor(mean), torch.tensor(precision)


def mean_field_logistic(inputs, labels):
    """Minimise E_q[Σ log(1 + exp f) − y f] + KL(q ‖ prior) over diagonal Gaussians; f = xᵀθ is Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def objective(parameters):
        mean, log_sigma = parameters[:2], parameters[2:]
        variance = np.exp(2 * log_sigma)
        centre, spread = inputs @ mean, np.sqrt(inputs**2 @ variance)
        softplus = np.logaddexp(0, centre[:, None] + spread[:, None] * nodes) @ weights
        kl = 0.5 * np.sum(PRIOR_PRECISION * (variance + mean**2) - 1 - 2 * log_sigma - np.log(PRIOR_PRECISION))
        return np.sum(softplus - labels * centre) + kl

    best = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    return best.x[:2], np.exp(-2 * best.x[2:])


def gaussian_logistic(inputs, labels):
    """Mean and precision matrix of the best full Gaussian in two dimensions; f = xᵀθ is Gaussian here too."""
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def objective(parameters):
        mean, root = parameters[:2], np.array([[np.exp(parameters[2]), 0.0], [parameters[3], np.exp(parameters[4])]])
        covariance = root @ root.T
        centre, spread = inputs @ mean, np.sqrt(np.einsum("ni,ij,nj->n", inputs, covariance, inputs))
        softplus = np.logaddexp(0, centre[:, None] + spread[:, None] * nodes) @ weights
        kl = 0.5 * PRIOR_PRECISION * (np.trace(covariance) + mean @ mean) - parameters[2] - parameters[4]
        return np.sum(softplus - labels * centre) + kl

    best = minimize(objective, np.array([0.0, 0.0, -2.0, 0.0, -2.0]), method="BFGS", options={"gtol": 1e-8}).x
    root = np.array([[np.exp(best[2]), 0.0], [best[3], np.exp(best[4])]])
    return torch.tensor(best[:2]), torch.tensor(np.linalg.inv(root @ root.T))
