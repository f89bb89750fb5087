"""A target no single Gaussian can hold: a double well and a banana, approximated by mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from common import headline, record, save, size

from posterity.algorithms import mixture_vi
from posterity.families import Gaussian, MixtureOfGaussians

LIMITS = (-3.2, 3.2)


def double_well(theta: torch.Tensor) -> torch.Tensor:
    """−log p up to a constant: two valleys at x = ±1.5."""
    x, y = theta.unbind(-1)
    return 0.6 * (x**2 - 2.25) ** 2 / 2.25 + 0.5 * y**2


def banana(theta: torch.Tensor) -> torch.Tensor:
    """−log p up to a constant: a Gaussian bent along a parabola."""
    x, y = theta.unbind(-1)
    return 0.5 * x**2 / 1.5 + 3.0 * (y - 0.5 * x**2 + 1.2) ** 2


def approximate(loss: Callable[[torch.Tensor], torch.Tensor], components: int) -> MixtureOfGaussians | Gaussian:
    generator = torch.Generator().manual_seed(2)
    means = 1.2 * torch.randn(components, 2, generator=generator, dtype=torch.float64)
    precisions = torch.eye(2, dtype=torch.float64).expand(components, 2, 2)
    rule = mixture_vi(lr=0.05, nodes=12).rule
    if components == 1:
        return rule.run(Gaussian(means[0], precisions[0]), loss, steps=size(400, 3))
    start = MixtureOfGaussians.of(torch.full((components,), 1 / components, dtype=torch.float64), means, precisions)
    return rule.run(start, loss, steps=size(400, 3))


def density(log_density: torch.Tensor, cell: float) -> torch.Tensor:
    p = (log_density - log_density.max()).exp()
    return p / (p.sum() * cell)


def main() -> None:
    ticks = torch.linspace(*LIMITS, 160, dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    cell = float(ticks[1] - ticks[0]) ** 2
    shades = [mpl.colormaps["Blues"](depth) for depth in (0.15, 0.35, 0.55, 0.75, 0.95)]
    figure, axes = plt.subplots(2, 4, figsize=(13, 6.6), sharex=True, sharey=True, layout="constrained")
    found: dict[str, list[float]] = {}
    for row, (name, loss) in zip(axes, (("double well", double_well), ("banana", banana)), strict=True):
        target = density(-loss(grid), cell)
        levels = (target.max() * torch.tensor([0.02, 0.1, 0.3, 0.6, 0.9])).tolist()
        panels = [(f"{name}: the target", target, None)]
        for components in (1, 2, 8):
            q = approximate(loss, components)
            log_q = q.log_prob(grid)
            kl = float((log_q.exp() * (log_q - target.log())).sum() * cell)
            found.setdefault(name, []).append(kl)
            panels.append((f"{components} Gaussian{'s' * (components > 1)}: KL {kl:.3f}", log_q.exp(), q))
        for axis, (title, p, q) in zip(row, panels, strict=True):
            axis.contourf(ticks, ticks, p.reshape(160, 160).T, levels=levels, colors=shades, extend="max")
            if q is not None:
                means, weights = (
                    (q.conditional.mean, q.weights) if isinstance(q, MixtureOfGaussians) else (q.mean[None], 1)
                )
                axis.contour(ticks, ticks, target.reshape(160, 160).T, levels=levels[:1], colors="grey", linestyles=":")
                axis.scatter(*means.T, s=400 * weights, c="tab:red", edgecolor="w", alpha=0.8)
            axis.set_title(title)
    headline(figure, "KL(q ‖ p) falls as components are added (red: their means, sized by weight; dotted: the target)")
    record("mixture_approximation", kl=found)
    save(figure, "mixture_approximation")


if __name__ == "__main__":
    main()
