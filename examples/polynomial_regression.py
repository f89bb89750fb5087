"""Bayesian linear regression with a degree-15 polynomial: the posterior over curves narrows as data arrive."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from common import headline, record, save

from posterity import BayesianLearningRule
from posterity.families import Gaussian
from posterity.gradients import Delta, LinearLoss
from posterity.likelihoods import GaussianLikelihood

DEGREE = 15
NOISE = 0.2


def truth(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2.5 * x) + 0.3 * x


def features(x: torch.Tensor) -> torch.Tensor:
    """Legendre polynomials: powers span the same curves, but no floating-point number survives x¹⁵."""
    columns = [torch.ones_like(x), x]
    for k in range(1, DEGREE):
        columns.append(((2 * k + 1) * x * columns[-1] - k * columns[-2]) / (k + 1))
    return torch.stack(columns, -1)


def posterior(x: torch.Tensor, y: torch.Tensor) -> Gaussian:
    """One step of the rule with ρ = 1: exact for a quadratic loss, whatever the starting point."""
    prior = Gaussian.standard(DEGREE + 1)
    loss = LinearLoss(inputs=features(x), targets=y, likelihood=GaussianLikelihood(precision=NOISE**-2))
    return BayesianLearningRule(Delta(), lr=1.0, prior=prior).step(prior, loss)


def main() -> None:
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(60, generator=generator, dtype=torch.float64) - 1
    y = truth(x) + NOISE * torch.randn(60, generator=generator, dtype=torch.float64)
    grid = torch.linspace(-1, 1, 200, dtype=torch.float64)
    figure, axes = plt.subplots(1, 4, figsize=(14, 4.2), sharey=True, layout="constrained")
    found = {}
    for axis, count in zip(axes, (0, 3, 10, 60), strict=True):
        q = posterior(x[:count], y[:count]) if count else Gaussian.standard(DEGREE + 1)
        curves = q.sample(30, generator) @ features(grid).T
        mean = features(grid) @ q.mean
        std = (features(grid) @ q.covariance * features(grid)).sum(-1).sqrt()
        if count:
            near = (grid[:, None] - x[:count]).abs().amin(1) < 0.05
            found[count] = {"near": std[near].mean().item(), "elsewhere": std[~near].mean().item()}
        axis.plot(grid, curves.T, color="tab:blue", alpha=0.15, lw=1)
        axis.fill_between(grid, mean - 2 * std, mean + 2 * std, color="tab:blue", alpha=0.2, label="mean ± 2 std")
        axis.plot(grid, mean, color="tab:blue", lw=2)
        axis.plot(grid, truth(grid), "k--", lw=1, label="truth")
        axis.plot(x[:count], y[:count], "o", color="tab:red", ms=5, label="data")
        axis.set(title=f"{count} examples", xlabel="x", ylim=(-3, 3), xlim=(-1, 1))
    axes[0].set_ylabel("y")
    axes[-1].legend(loc="lower right", fontsize=10)
    headline(figure, f"Posterior over degree-{DEGREE} polynomials: certain where there are data, uncertain elsewhere")
    record("polynomial_regression", standard_deviation=found)
    save(figure, "polynomial_regression")


if __name__ == "__main__":
    main()
