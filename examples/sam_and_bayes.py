"""SAM against Bayes: the worst loss nearby, and the expected loss nearby, both prefer the wide valley.

Where Bayes averages the loss over a Gaussian, SAM takes its worst value in a ball. The two are relatives: the tightest
convex lower bound of the expected negative loss, in the expectation parameters, leads to SAM's maximum (Möllenhoff and
Khan, "SAM as an optimal relaxation of Bayes", 2023).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import headline, record, save, size
from torch import Tensor, nn

from posterity.optim import IVON, SAM
from posterity.plots.style import BLUE, INK, MUTED, ORANGE, panels

SCALE = 0.6  # of the picture on the left: SAM's radius, and the standard deviation of Bayes


def loss(theta: Tensor) -> Tensor:
    """A deep, narrow valley at −1, a shallower, wide one at 1.2, and a slope from the first to the second."""
    narrow, wide = torch.exp(-((theta + 1) ** 2) / 0.02), torch.exp(-((theta - 1.2) ** 2) / 0.7)
    return 1.6 - 1.5 * narrow - 1.1 * wide + 0.05 * (theta - 1.2) ** 2


def worst(theta: Tensor, scale: float) -> Tensor:
    """max ℓ within a distance."""
    return loss(theta.unsqueeze(-1) + torch.linspace(-scale, scale, 201)).amax(-1)


def expected(theta: Tensor, scale: float) -> Tensor:
    """E ℓ(θ + σε), by a sum over a fine grid."""
    e = torch.linspace(-5, 5, 401)
    return loss(theta.unsqueeze(-1) + scale * e) @ torch.softmax(-0.5 * e**2, 0)


def sam(weights: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    return SAM(weights, lr=0.02, rho=scale, momentum=0.0)


def ivon(weights: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    """h stays at 1, so that σ is what was asked for."""
    options = {"hess_init": 1.0, "betas": (0.0, 0.99999), "weight_decay": 1e-6, "mc_samples": 2}
    return IVON(weights, lr=0.02, ess=scale**-2, **options)


def end(make: Callable[[list[nn.Parameter], float], torch.optim.Optimizer], scale: float, steps: int) -> float:
    """Where an optimizer arrives that starts at the bottom of the narrow valley."""
    weight = nn.Parameter(torch.tensor([-1.0]))
    optimizer = make([weight], scale)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(weight).sum()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
    return weight.item()


def main() -> None:
    torch.set_num_threads(1)
    grid = torch.linspace(-2.4, 3, 600)
    objectives = {
        "the loss": (loss(grid), INK),
        f"SAM: the worst within {SCALE}": (worst(grid, SCALE), ORANGE),
        f"Bayes: the expectation, σ = {SCALE}": (expected(grid, SCALE), BLUE),
    }
    figure, ((left, right),) = panels(1, 2, width=5.8, height=4.2)
    for name, (values, colour) in objectives.items():
        left.plot(grid, values, color=colour, label=name)
        left.plot(grid[values.argmin()], values.min(), "v", color=colour, markersize=9, zorder=5)
    left.set(xlabel="weight", ylabel="objective", ylim=(0, 3.3))
    left.set_title("Three objectives, their smallest values marked")
    left.legend(frameon=False, loc="upper right")
    scales = torch.linspace(0.05, 1.0, size(7, 2)).tolist()
    found = {}
    for name, make, colour in (("SAM, by its radius", sam, ORANGE), ("IVON, by its σ", ivon, BLUE)):
        found[name] = [end(make, scale, size(500, 5)) for scale in scales]
        right.plot(scales, found[name], "o-", color=colour, label=name)
    for place, name in ((-1.0, "narrow valley: the start"), (1.2, "wide valley")):
        right.axhline(place, color=MUTED, linestyle=":", linewidth=1)
        right.text(1.0 if place < 0 else 0.05, place + 0.05, name, ha="right" if place < 0 else "left", color=MUTED)
    right.set(xlabel="how far they look: radius, σ", ylabel="weight after training")
    right.set_title("How far must they look to leave the narrow valley?")
    right.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.75))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    headline(figure, "Both prefer the wide valley. IVON gets there from the narrow one; SAM stops on the flat between")
    minima = {name: grid[values.argmin()].item() for name, (values, _) in objectives.items()}
    record("sam_and_bayes", minima=minima, looked=scales, ends=found)
    save(figure, "sam_and_bayes")


if __name__ == "__main__":
    main()
