"""Uncertainty in deep networks: one network is sure everywhere but at its line; posteriors doubt far from the data.

Numbers are means over three data sets. Settings were chosen on a fourth: VOGN's prior among three, prior and learning
rate of IVON among eight pairs, by doubt where accuracy was within half a point of the point's. "Variational" has none.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from common import headline, moons, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, VERMILION, panels

DATA = (1, 2, 3)  # seeds; settings were chosen on 0


def entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.clamp(min=1e-12).log()).sum(-1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))


def answers(data: tuple[Tensor, Tensor], x: Tensor, seed: int) -> dict[str, Tensor]:
    """Class probabilities of some inputs, by seven ways to learn the same network."""

    def learnt(method: str, epochs: int, **settings: Any) -> po.Run:
        return po.fit(network(), data, method=method, epochs=size(epochs, 2), batch_size=50, seed=seed, **settings)

    point = learnt("adamw", 150, lr=5e-3)
    curved = po.laplace(point.model, data, structure=size("full", "diag"), prior_precision=1.0)
    runs = {
        "One network (AdamW)": point,
        "IVON": learnt("ivon", 400, lr=0.1, prior=0.3, hess_init="auto"),
        "VOGN": learnt("vogn", 400, prior=0.1),
        "Laplace": replace(point, posterior=curved),
        "Variational, untuned": learnt("variational", 400),
        "MC dropout": learnt("dropout", 150, p=0.2, lr=5e-3),
        "Ensemble of five": learnt("ensemble", 150, members=size(5, 2), lr=5e-3),
    }
    return {name: po.predict(run.model, run.posterior, x).probs for name, run in runs.items()}


def main() -> None:
    torch.set_num_threads(1)
    ticks = torch.linspace(-4, 5, size(80, 20)), torch.linspace(-4, 4.5, size(80, 20))
    grid = torch.cartesian_prod(*ticks)
    shown: dict[str, Tensor] = {}  # probabilities over the plane, for the first data set
    found: dict[str, dict[str, list[float]]] = {}
    for seed in DATA[: size(3, 1)]:
        data, test = moons(200, seed=seed), moons(1000, seed=100 + seed)
        far = torch.cdist(grid, data[0]).amin(1) > 2.0
        for name, both in answers(data, torch.cat((grid, test[0])), seed).items():
            probs, known = both[: len(grid)], both[len(grid) :]
            mine = found.setdefault(name, {"entropy_far": [], "accuracy": []})
            mine["entropy_far"].append(round(float(entropy(probs)[far].mean()), 3))
            mine["accuracy"].append(round(float((known.argmax(1) == test[1]).float().mean()), 3))
            shown.setdefault(name, probs)
    figure, axes = panels(2, 4, width=3.3, height=3.7, sharex=True, sharey=True)
    data, shape = moons(200, seed=DATA[0]), tuple(map(len, ticks))
    for axis, (name, probs) in zip(axes.flat, shown.items()):
        doubt, right = (fmean(values) for values in found[name].values())
        levels = torch.linspace(0, 0.6932, 12).tolist()
        shades = axis.contourf(*ticks, entropy(probs).reshape(shape).T, levels=levels, cmap="Greys")
        axis.contour(*ticks, probs[:, 1].reshape(shape).T, levels=[0.5], colors="w", linewidths=1)
        for label, colour in ((0, BLUE), (1, VERMILION)):
            axis.scatter(*data[0][data[1] == label].T, s=9, color=colour, linewidths=0)
        axis.set(title=f"{name}\n{doubt:.3f} nats far away\n{right:.1%} right", xlabel="x₁")
        axis.label_outer()
    axes[0, 3].tick_params(labelbottom=True)  # no panel is below it
    axes[0, 3].set_xlabel("x₁")
    for axis in axes[:, 0]:
        axis.set_ylabel("x₂")
    axes[1, 3].axis("off")
    bar = figure.colorbar(shades, cax=axes[1, 3].inset_axes((0.1, 0.45, 0.85, 0.09)), orientation="horizontal")
    bar.set_ticks([0, 0.35, 0.69], labels=["0: certain", "0.35", "0.69"])
    bar.set_label("predictive entropy (nats)")
    (alone, *doubts), (right, *others) = ([fmean(f[key]) for f in found.values()] for key in found["IVON"])
    posteriors = doubts[:-1]  # all but the ensemble
    headline(
        figure,
        "A single network, and also an ensemble, is certain where there are no data. Posteriors of equal accuracy "
        f"(to {100 * (right - min(others)):.1f} points) are {min(posteriors) / alone:.1f} to "
        f"{max(posteriors) / alone:.0f} times as uncertain there",
    )
    record("deep_uncertainty", **found)
    save(figure, "deep_uncertainty")


if __name__ == "__main__":
    main()
