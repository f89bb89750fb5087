"""Model view against data view: the same posterior, as a distribution over boundaries and as examples that hold it."""

from __future__ import annotations

import torch
from common import headline, moons, record, save, size
from torch import nn

import posterity as po
from posterity.plots.style import BLUE, INK, MUTED, VERMILION, panels


def main() -> None:
    torch.set_num_threads(1)
    data = moons(120, noise=0.2, seed=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2))
    run = po.fit(model, data, method="ivon", epochs=size(400, 3), batch_size=40)
    m = po.memory_map(model, run.posterior, data)
    ticks = torch.linspace(-2, 3, size(120, 30)), torch.linspace(-1.7, 2.2, size(120, 30))
    grid, shape = torch.cartesian_prod(*ticks), tuple(map(len, ticks))
    drawn = po.predict(model, run.posterior, grid, samples=size(20, 3), keep_samples=True).outputs
    mean = po.predict(model, run.posterior, grid, samples=0).probs

    figure, (axes,) = panels(1, 2, width=6.0, height=4.6, sharex=True, sharey=True)
    left, right = axes
    for logits in drawn:
        boundary = (logits[:, 1] - logits[:, 0]).reshape(shape).T
        left.contour(*ticks, boundary, levels=[0.0], colors=MUTED, linewidths=0.8, alpha=0.7)
    for axis in (left, right):
        axis.contour(*ticks, mean[:, 1].reshape(shape).T, levels=[0.5], colors=INK, linewidths=2)
        axis.set_xlabel("x₁")
    weight = torch.tensor(m.table["sensitivity"].to_numpy())
    dots = 12 + 500 * weight / weight.max()
    for label, colour in ((0, BLUE), (1, VERMILION)):
        mine = data[1] == label
        left.scatter(*data[0][mine].T, s=14, color=colour, edgecolor="w", linewidth=0.4, zorder=3)
        right.scatter(*data[0][mine].T, s=dots[mine], color=colour, alpha=0.6, edgecolor="w", linewidth=0.4, zorder=3)
    left.set(title="Model view: boundaries drawn from the posterior", ylabel="x₂")
    right.set_title("Data view: size is how far predictions\nwould move without the example")
    headline(figure, "The same posterior twice: a cloud of boundaries, and the few examples that it depends on")
    share = (weight.sort(descending=True).values[: len(weight) // 10].sum() / weight.sum()).item()
    record("model_and_data", share_of_the_largest_tenth=share)
    save(figure, "model_and_data")


if __name__ == "__main__":
    main()
