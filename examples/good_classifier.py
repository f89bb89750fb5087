"""Which is a good classifier? Three that fit the same points; the evidence says which of them the data speak for."""

from __future__ import annotations

import torch
from common import save, size
from torch import Tensor

from posterity import BayesianLearningRule
from posterity.families import Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.plots.style import BLUE, GREEN, INK, MUTED, VERMILION, panels


def points(count: int) -> tuple[Tensor, Tensor]:
    """Two classes that a gentle curve parts."""
    generator = torch.Generator().manual_seed(4)
    x = 2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1
    height = x[:, 1] - 0.9 * x[:, 0] ** 2 + 0.25 + 0.15 * torch.randn(count, generator=generator, dtype=torch.float64)
    return x, (height > 0).double()


def monomials(x: Tensor, degree: int) -> Tensor:
    """All products x₁ⁱ x₂ʲ with i + j ≤ degree."""
    pairs = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    return torch.stack([x[:, 0] ** i * x[:, 1] ** j for i, j in pairs], 1)


def main() -> None:
    x, y = points(60)
    ticks = torch.linspace(-1.2, 1.2, size(150, 40), dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    figure, (axes,) = panels(1, 3, width=4.3, height=4.3, sharex=True, sharey=True)
    evidence = []
    for axis, degree in zip(axes, (1, 2, 6), strict=True):
        features = monomials(x, degree)
        d = features.shape[1]
        prior = Gaussian(torch.zeros(d, dtype=torch.float64), 0.1 * torch.eye(d, dtype=torch.float64))
        loss = LinearLoss(inputs=features, targets=y, likelihood="bernoulli")
        rule = BayesianLearningRule(Quadrature(), lr=0.3, prior=prior)
        q = rule.run(Gaussian.standard(d), loss, steps=size(200, 20))
        evidence.append(-rule.free_energy(q, loss).item())
        shape = (len(ticks), len(ticks))
        for w in q.sample(size(15, 3), torch.Generator().manual_seed(0)):
            line = (monomials(grid, degree) @ w).reshape(shape).T
            axis.contour(ticks, ticks, line, levels=[0.0], colors=MUTED, linewidths=0.6, alpha=0.6)
        mean = (monomials(grid, degree) @ q.mean).reshape(shape).T
        axis.contour(ticks, ticks, mean, levels=[0.0], colors=INK, linewidths=2.2)
        for label, colour in ((0, BLUE), (1, VERMILION)):
            axis.scatter(*x[y == label].T, s=26, color=colour, edgecolor="w", zorder=3)
        right = ((features @ q.mean > 0) == (y > 0.5)).double().mean().item()
        axis.set_title(f"Degree {degree}: {right:.0%} right\nlog evidence at least {evidence[-1]:.1f}")
        axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xlabel="x₁")
    best = max(range(3), key=evidence.__getitem__)
    axes[best].title.set(color=GREEN, fontweight="bold")
    axes[0].set_ylabel("x₂")
    figure.suptitle("Which is a good classifier? Black: the posterior's mean; grey: others the data cannot rule out")
    save(figure, "good_classifier")


if __name__ == "__main__":
    main()
