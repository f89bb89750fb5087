"""Uncertainty in deep networks: one network is sure right up to its line; posteriors doubt, each in its own way."""

from __future__ import annotations

import torch
from common import moons, save, size
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, INK, UNCERTAINTY, VERMILION, panels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))


def answers(data: tuple[Tensor, Tensor], grid: Tensor) -> dict[str, Tensor]:
    """Class probabilities on a grid, by five ways to learn the same network."""
    epochs = size(150, 2)
    options = {"epochs": epochs, "batch_size": 50}
    found = {}
    point = po.fit(network(), data, method="adamw", lr=5e-3, **options)
    found["One network (AdamW)"] = po.predict(point.model, point.posterior, grid)
    laplace = po.laplace(point.model, data, structure=size("full", "diag"), prior_precision=1.0)
    found["Laplace, linearised"] = po.predict(point.model, laplace, grid, method="linearised")
    ivon = po.fit(network(), data, method="ivon", epochs=size(400, 2), batch_size=50)
    found["IVON"] = po.predict(ivon.model, ivon.posterior, grid)
    many = po.fit(network(), data, method="ensemble", members=size(5, 2), lr=5e-3, **options)
    found["Ensemble of five"] = po.predict(many.model, many.posterior, grid)
    masked = po.fit(network(), data, method="dropout", p=0.2, lr=5e-3, **options)
    found["MC dropout"] = po.predict(masked.model, masked.posterior, grid)
    return {name: p.probs for name, p in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    data = moons(200)
    ticks = torch.linspace(-4, 5, size(80, 20)), torch.linspace(-4, 4.5, size(80, 20))
    grid = torch.cartesian_prod(*ticks)
    shape = tuple(map(len, ticks))
    figure, (axes,) = panels(1, 5, width=3.2, height=3.4, sharex=True, sharey=True)
    for axis, (name, probs) in zip(axes, answers(data, grid).items(), strict=True):
        doubt = -(probs * probs.clamp(min=1e-12).log()).sum(-1).reshape(shape).T
        shades = axis.contourf(*ticks, doubt, levels=torch.linspace(0, 0.6932, 12).tolist(), cmap=UNCERTAINTY)
        axis.contour(*ticks, probs[:, 1].reshape(shape).T, levels=[0.5], colors="w", linewidths=1)
        for label, colour in ((0, BLUE), (1, VERMILION)):
            axis.scatter(*data[0][data[1] == label].T, s=7, color=colour, edgecolor=INK, linewidth=0.2)
        axis.set_title(name)
        axis.set(xlabel="x₁")
    axes[0].set_ylabel("x₂")
    figure.colorbar(shades, ax=axes.tolist(), label="predictive entropy (nats)", ticks=[0, 0.35, 0.69])
    figure.suptitle(
        "Dark: sure. One network doubts nothing beside its line; how far the doubt of posteriors reaches differs"
    )
    save(figure, "deep_uncertainty")


if __name__ == "__main__":
    main()
