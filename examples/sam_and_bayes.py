"""SAM against Bayes: the worst loss nearby, and the expected loss nearby, both prefer the wide valley.

Where Bayes averages the loss over a Gaussian, SAM takes its worst value in a ball. The two are relatives: the tightest
convex lower bound of the expected negative loss, in the expectation parameters, leads to SAM's maximum (Möllenhoff and
Khan, "SAM as an optimal relaxation of Bayes", 2023).
"""

from __future__ import annotations

import torch
from common import save, size
from torch import Tensor, nn

from posterity.optim import IVON, SAM
from posterity.plots.style import BLUE, INK, MUTED, ORANGE, panels

RADIUS = 0.35
SIGMA = 0.35


def loss(theta: Tensor) -> Tensor:
    """A deep, narrow valley at −1 and a shallower, wide one at 1.2."""
    narrow, wide = torch.exp(-((theta + 1) ** 2) / 0.02), torch.exp(-((theta - 1.2) ** 2) / 0.7)
    return 1.6 - 1.5 * narrow - 1.25 * wide + 0.02 * theta**2


def worst(theta: Tensor) -> Tensor:
    """max ℓ within the radius."""
    return loss(theta.unsqueeze(-1) + torch.linspace(-RADIUS, RADIUS, 201)).amax(-1)


def expected(theta: Tensor) -> Tensor:
    """E ℓ(θ + σε), by a sum over a fine grid."""
    e = torch.linspace(-5, 5, 401)
    weight = torch.softmax(-0.5 * e**2, 0)
    return loss(theta.unsqueeze(-1) + SIGMA * e) @ weight


OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.02),
    "SAM": lambda weights: SAM(weights, lr=0.02, rho=RADIUS, momentum=0.0),
    "IVON": lambda weights: IVON(  # h stays near 1, so that σ is what it is on the left
        weights, lr=0.02, ess=SIGMA**-2, hess_init=1.0, betas=(0.0, 0.99999), weight_decay=1e-6, mc_samples=2
    ),
}


def end(name: str, start: Tensor, steps: int) -> float:
    """Where an optimizer arrives."""
    weight = nn.Parameter(start.reshape(1).clone())
    optimizer = OPTIMIZERS[name]([weight])

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
    grid, starts = torch.linspace(-2.4, 3, 600), torch.linspace(-2, 2.6, size(10, 2))
    colours = dict(zip(OPTIMIZERS, (INK, ORANGE, BLUE), strict=True))
    objectives = {
        "the loss": (loss, INK),
        f"SAM: the worst within {RADIUS}": (worst, ORANGE),
        f"Bayes: the expectation, σ = {SIGMA}": (expected, BLUE),
    }
    figure, ((left, right),) = panels(1, 2, width=5.8, height=4.2)
    for name, (objective, colour) in objectives.items():
        values = objective(grid)
        left.plot(grid, values, color=colour, label=name)
        left.plot(grid[values.argmin()], values.min(), "v", color=colour, markersize=9, zorder=5)
    left.set(xlabel="m", ylabel="objective", ylim=(0, 2.4))
    left.set_title("Both smooth the narrow valley away\n(triangles: the smallest values)")
    left.legend(frameon=False, loc="upper left", fontsize=9)
    for k, (name, colour) in enumerate(colours.items()):
        reached = [end(name, start, size(300, 5)) for start in starts]
        right.plot(starts, reached, "o", color=colour, label=name, markersize=10 - 3 * k)
    for place, name in ((-1.0, "narrow valley"), (1.2, "wide valley")):
        right.axhline(place, color=MUTED, linestyle=":", linewidth=1)
        right.text(2.7, place + 0.06, name, ha="right", color=MUTED, fontsize=9)
    right.set(xlabel="start", ylabel="end", title="Where the optimizers arrive")
    right.legend(frameon=False, loc="center right")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, "sam_and_bayes")


if __name__ == "__main__":
    main()
