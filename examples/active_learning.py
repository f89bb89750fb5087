"""Which points an active learner asks for, and why: one by one, as a batch, and what becomes of the border."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from common import headline, record, save, size
from matplotlib.axes import Axes
from torch import Tensor, nn

import posterity as po
from posterity.exploration import acquire
from posterity.plots.style import BLUE, INK, ORANGE

K = 8
CRITERIA = {
    "entropy": "Entropy: all uncertainty, noise included",
    "bald": "BALD: uncertainty that a label removes",
    "batch_bald_linearised": "BALD for a batch of eight",
    "k_centre": "k-centre: far from what is labelled",
}


def crescents(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two interleaved crescents."""
    g = torch.Generator().manual_seed(seed)
    angle, y = torch.pi * torch.rand(count, generator=g), torch.arange(count) % 2
    x = torch.stack((angle.cos() * (1 - 2 * y) + y - 0.5, angle.sin() * (1 - 2 * y) + 0.5 * y - 0.25), 1)
    return 2 * (x + 0.12 * torch.randn(count, 2, generator=g)), y


def score_map(model: nn.Module, posterior: po.Posterior, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """A score on a grid."""
    a, b = torch.meshgrid(torch.linspace(-3.8, 3.8, 90), torch.linspace(-3, 3, 70), indexing="xy")
    p = po.predict(model, posterior, torch.stack((a.ravel(), b.ravel()), 1), samples=size(100, 5))
    score = p.entropy if name == "entropy" else p.mutual_information
    return a, b, score.reshape(a.shape)


def panel(axis: Axes, field: tuple[Tensor, Tensor, Tensor] | None, pool: Tensor, known: tuple[Tensor, Tensor]) -> None:
    """A map of scores where there is one, the pool, and what is labelled."""
    if field is not None:
        axis.contourf(*field, levels=14, cmap="Greys", vmax=1.6 * float(field[2].max()))
    axis.scatter(*pool.T, s=9, color=INK, alpha=0.55, linewidths=0)
    for label, colour in enumerate((ORANGE, BLUE)):
        axis.scatter(*known[0][known[1] == label].T, s=110, color=colour, edgecolors="white", linewidths=1.5)
    axis.set(xticks=[], yticks=[], aspect="equal", xlim=(-3.8, 3.8), ylim=(-3, 3))


def apart(points: Tensor, others: Tensor, least: float = 0.52) -> Tensor:
    """Places for labels: near their points, and nowhere closer to each other, or to other points, than so."""
    labels = points.clone() + 1e-3 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(400):
        gaps = labels[:, None] - torch.cat((labels, others))[None, :]
        length = gaps.norm(dim=-1).clamp(min=1e-6) + 9.0 * torch.eye(len(labels), len(labels) + len(others))
        push = (gaps / length[..., None] * (least - length).clamp(min=0.0)[..., None]).sum(1)
        labels = labels + 0.3 * push + 0.01 * (points - labels)
    return labels


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pool, truth = crescents(size(300, 40), 0)
    start = torch.tensor([0, 1, 2, 3, 4, 5])
    known = pool[start], truth[start]
    model = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 2))
    po.fit(model, known, method="adamw", epochs=size(300, 2), lr=0.02, prior=0.1)
    posterior = po.laplace(model, known, structure="full", prior_precision=0.3)
    spread: dict[str, float] = {}
    figure, axes = plt.subplots(2, 2, figsize=(11, 9.6), layout="constrained")
    for axis, (criterion, title) in zip(axes.flat, CRITERIA.items(), strict=True):
        picks = acquire(model, posterior, pool, K, criterion, labelled=known, exclude=start, samples=size(100, 5))
        field = None if criterion == "k_centre" else score_map(model, posterior, criterion)  # distances need no model
        panel(axis, field, pool, known)
        places = pool[picks.ids]
        for number, (point, label) in enumerate(zip(places, apart(places, known[0]), strict=True), 1):
            axis.plot(*torch.stack((point, label)).T, color=INK, linewidth=1.0, zorder=3)
            axis.scatter(*point, s=30, color="white", edgecolors=INK, linewidths=1.2, zorder=4)
            axis.scatter(*label, s=330, color="white", edgecolors=INK, linewidths=1.2, zorder=5)
            axis.annotate(str(number), label, ha="center", va="center", fontsize=12, fontweight="bold", zorder=6)
        spread[criterion] = round(float(torch.pdist(places).mean()), 2)
        axis.set_title(title, loc="left")
        print(f"{criterion}: {picks.ids.tolist()}\n  first: {picks.why[0]}")
    record("active_learning", mean_distance_of_eight=spread)
    headline(
        figure,
        "Which eight labels next? One by one, BALD takes nearly all of them in one place; as a batch, "
        "they spread (coloured: labelled; darker: higher score)",
    )
    save(figure, "active_learning")


if __name__ == "__main__":
    main()
