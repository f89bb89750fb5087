"""Which is a good classifier? The posterior over lines, and the probabilities it predicts together."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from common import headline, record, save

from posterity import BayesianLearningRule
from posterity.families import Gaussian
from posterity.gradients import LinearLoss, Quadrature


def two_clouds(per_class: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    centres = torch.tensor([[-1.0, -0.6], [1.0, 0.8]], dtype=torch.float64)
    noise = 0.7 * torch.randn(2, per_class, 2, generator=generator, dtype=torch.float64)
    x = (centres[:, None] + noise).reshape(-1, 2)
    y = torch.arange(2, dtype=torch.float64).repeat_interleave(per_class)
    return x, y


def with_intercept(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, torch.ones_like(x[..., :1])), -1)


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = two_clouds(8, generator)
    prior = Gaussian(torch.zeros(3, dtype=torch.float64), 0.05 * torch.eye(3, dtype=torch.float64))
    loss = LinearLoss(inputs=with_intercept(x), targets=y, likelihood="bernoulli")
    rule = BayesianLearningRule(Quadrature(), lr=0.5, prior=prior)
    q = rule.run(Gaussian.standard(3), loss, steps=200, tolerance=1e-10)

    ticks = torch.linspace(-3.5, 3.5, 200, dtype=torch.float64)
    grid = with_intercept(torch.cartesian_prod(ticks, ticks))
    samples = q.sample(500, generator)
    point = torch.sigmoid(grid @ q.mean).reshape(200, 200).T
    average = torch.sigmoid(grid @ samples.T).mean(-1).reshape(200, 200).T

    figure, axes = plt.subplots(1, 3, figsize=(13, 4.3), sharex=True, sharey=True, layout="constrained")
    for w in samples[:40]:
        axes[0].plot(ticks, -(w[0] * ticks + w[2]) / w[1], color="grey", alpha=0.4, lw=0.8)
    axes[0].plot(ticks, -(q.mean[0] * ticks + q.mean[2]) / q.mean[1], "k", lw=2, label="the mean's line")
    axes[0].set_title("40 classifiers the data cannot tell apart")
    axes[0].legend(loc="lower left")
    for axis, p, title in zip(
        axes[1:], (point, average), ("one classifier (the mean)", "all of them, averaged"), strict=True
    ):
        shades = axis.contourf(ticks, ticks, p, levels=torch.linspace(0, 1, 11).tolist(), cmap="RdBu_r", alpha=0.8)
        axis.contour(ticks, ticks, p, levels=[0.1, 0.5, 0.9], colors="k", linewidths=0.8)
        axis.set_title(f"p(red), {title}")
    for axis in axes:
        axis.scatter(*x[y == 0].T, c="tab:blue", edgecolor="w", zorder=3)
        axis.scatter(*x[y == 1].T, c="tab:red", edgecolor="w", zorder=3)
        axis.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5), xlabel="x₁")
    axes[0].set_ylabel("x₂")
    figure.colorbar(shades, ax=axes.tolist(), shrink=0.9)
    headline(
        figure, "Far from the data, the average of all classifiers is less certain than one (lines: 0.1, 0.5, 0.9)"
    )
    far = (grid[:, :2].abs().amax(1) > 3).reshape(200, 200).T
    doubt = {name: (0.5 - (p[far] - 0.5).abs()).mean().item() for name, p in (("one", point), ("average", average))}
    record("logistic_regression", mean_probability_of_the_other_class_far_away=doubt)
    save(figure, "logistic_regression")


if __name__ == "__main__":
    main()
