"""What a K-prior keeps: two tasks of 500 points each, learnt one after the other by the same small network."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from common import headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.adaptation import k_prior, select

PER_TASK = 500


def task(angle: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two half-moons, turned and moved so that the tasks share the plane."""
    y = torch.arange(PER_TASK) % 2
    t = torch.pi * torch.rand(PER_TASK, generator=generator)
    moon = torch.stack((t.cos() + y - 0.5, t.sin() * (1 - 2.0 * y) + 0.25 * (2.0 * y - 1)), 1)
    moon = moon + 0.12 * torch.randn(PER_TASK, 2, generator=generator)
    c, s = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
    return moon @ torch.stack((torch.stack((c, s)), torch.stack((-s, c)))) + 1.6 * torch.stack((c, s)), y


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = task(2.6, generator), task(-0.5, generator)
    options = {"method": "adamw", "prior": 0.0, "lr": 3e-3, "epochs": size(100, 1), "batch_size": 50}
    old = po.fit(network(), first, **options).model
    posterior = po.laplace(old, first, structure="diag", prior_precision=0.1)
    memory = select(old, posterior, first, 30, by="k-centre")
    prior = k_prior(old, posterior, memory)
    start = {name: t.clone() for name, t in old.state_dict().items()}

    models = {"after the first task": old}
    for title, penalty in (("then the second alone", None), ("then the second, with a K-prior", prior.over(PER_TASK))):
        model = network()
        model.load_state_dict(start)
        models[title] = po.fit(model, second, penalty=penalty, **options).model
    both = (torch.cat((first[0], second[0])), torch.cat((first[1], second[1])))
    models["both at once"] = po.fit(network(), both, **options).model

    ticks = torch.linspace(-4.2, 4.2, 200)
    grid = torch.cartesian_prod(ticks, ticks)
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 10.6), sharex=True, sharey=True, layout="constrained")
    found = {}
    for axis, (title, model) in zip(axes.flat, models.items(), strict=True):
        with torch.no_grad():
            p = model(grid).softmax(1)[:, 1].reshape(200, 200).T
        axis.contourf(ticks, ticks, p, levels=11, cmap="RdBu_r", alpha=0.55, vmin=0, vmax=1)
        axis.contour(ticks, ticks, p, levels=[0.5], colors="k", linewidths=1.2)
        for data, marker in ((first, "o"), (second, "^")):
            shown = data is first or model is not old
            for label, colour in ((0, "tab:blue"), (1, "tab:red")):
                x = data[0][data[1] == label]
                axis.scatter(*x.T, s=14, marker=marker, c=colour, alpha=0.7 if shown else 0.08, linewidths=0)
        if "K-prior" in title:
            axis.scatter(
                *memory.inputs.T,
                s=110,
                facecolors="none",
                edgecolors="k",
                linewidths=1.6,
                label="the memory: 30 of 500",
            )
            axis.legend(loc="upper right")
        with torch.no_grad():
            right = [(model(x).argmax(1) == y).float().mean().item() for x, y in (first, second)]
        found[title] = right
        axis.set_title(f"{title}\nfirst task {right[0]:.0%}, second {right[1]:.0%}")
        axis.set(xlim=(-4.2, 4.2), ylim=(-4.2, 4.2))
    headline(figure, "A K-prior keeps the old predictions where they were, with a memory of 6 % of the old inputs")
    record("kprior_intuition", accuracy_of_both_tasks=found)
    save(figure, "kprior_intuition")


if __name__ == "__main__":
    main()
