"""Which is a good classifier? Two lines part today's points equally well; then the past comes back, and one fails.

One line is fitted to today's points alone. The other takes the posterior of the past as its prior, and keeps what the
past had ruled out.
"""

from __future__ import annotations

import textwrap

import torch
from common import headline, record, save, size
from matplotlib.axes import Axes
from torch import Tensor

from posterity import BayesianLearningRule
from posterity.families import Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.plots.style import BLUE, GREEN, MUTED, VERMILION, panels

Data = tuple[Tensor, Tensor]


def clouds(centres: tuple[tuple[float, float], tuple[float, float]], count: int, seed: int) -> Data:
    """Points around two centres, one for each class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    noise = 0.35 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return torch.tensor(centres, dtype=torch.float64)[y] + noise, y.double()


def rows(x: Tensor) -> Tensor:
    """The points with a constant beside them."""
    return torch.cat((x, torch.ones_like(x[:, :1])), 1)


def learnt(data: Data, prior: Gaussian) -> Gaussian:
    """The posterior over lines."""
    loss = LinearLoss(inputs=rows(data[0]), targets=data[1], likelihood="bernoulli")
    return BayesianLearningRule(Quadrature(), lr=0.3, prior=prior).run(prior, loss, steps=size(150, 40))


def right(q: Gaussian, data: Data) -> float:
    """The share of points on the right side of the mean's line."""
    return float(((rows(data[0]) @ q.mean > 0) == (data[1] > 0.5)).double().mean())


def line(axis: Axes, w: Tensor, **style: object) -> None:
    """Where a classifier changes its mind."""
    height = torch.tensor([-6.0, 4.0], dtype=torch.float64)
    axis.plot(-(w[1] * height + w[2]) / w[0], height, **style)


def points(axis: Axes, data: Data, alpha: float = 1.0) -> None:
    for label, colour in ((0, BLUE), (1, VERMILION)):
        axis.scatter(*data[0][data[1] == label].T, s=30, color=colour, edgecolor="w", alpha=alpha, zorder=3)


def main() -> None:
    past = clouds(((0.2, 1.8), (2.6, 2.0)), 40, seed=0)
    today = clouds(((-1.9, -1.9), (0.9, -1.3)), 40, seed=1)
    vague = Gaussian(torch.zeros(3, dtype=torch.float64), 0.1 * torch.eye(3, dtype=torch.float64))
    before = learnt(past, vague)
    lines = {"today's points alone": (learnt(today, vague), MUTED), "the past as prior": (learnt(today, before), GREEN)}
    scores = {name: [right(q, today), right(q, past)] for name, (q, _) in lines.items()}
    record("good_classifier", right_today_and_past=scores)
    figure, (axes,) = panels(1, 3, width=4.6, height=5.2, sharex=True, sharey=True)
    for axis in axes:
        points(axis, today)
        axis.set(xlim=(-3.6, 3.8), ylim=(-4.9, 3.2), xlabel="x₁")
    places = ((-3.5, 0.3), (0.6, -4.0))
    for (name, (q, colour)), place in zip(lines.items(), places, strict=True):
        today_right, past_right = scores[name]
        for axis, what in ((axes[0], f"{today_right:.0%} right"), (axes[1], f"{past_right:.0%} of the past right")):
            line(axis, q.mean, color=colour, linewidth=3)
            axis.text(*place, textwrap.fill(f"{name}: {what}", 18), color=colour, va="center")
    axes[0].set_title("Today: which line is better?\nBoth get the same right")
    points(axes[1], past)
    axes[1].set_title("The past comes back:\none of them fails")
    for w in lines["the past as prior"][0].sample(size(25, 4), torch.Generator().manual_seed(0)):
        line(axes[2], w, color=GREEN, linewidth=0.8, alpha=0.5)
    for w in lines["today's points alone"][0].sample(size(25, 4), torch.Generator().manual_seed(0)):
        line(axes[2], w, color=MUTED, linewidth=0.8, alpha=0.5)
    points(axes[2], past, alpha=0.35)
    axes[2].set_title("Lines that today allows (grey),\nand those that the past allows too")
    axes[0].set_ylabel("x₂")
    headline(figure, "Which is a good classifier? Today's points cannot tell; what was learnt before can")
    save(figure, "good_classifier")


if __name__ == "__main__":
    main()
