"""Carrying what a network has learnt into another architecture, from a memory of the old data.

The old network (64-50-10, ReLU) was trained on 1200 digits by `po.fit` at its defaults. Its data are gone but for a
memory of 2 to 100 %. `po.adapt(into=...)` trains the new network on the old one's predictions for the memory (a
K-prior: "change of model"). The first layer of the deeper network has the columns of the old one, so that the posterior
also pulls its first 50 units to the old weights; the convolutional network shares nothing. Replay trains a new network
on the labels of the same memory, with the same optimizer, steps and learning rate. Retraining takes all data, by
`po.fit` at its defaults. Accuracy, NLL, and KL from the old network's predictions, on 597 other digits. Seeds change
split, networks and memory. On the split 0 two things were decided: the prior does not pull weights that the old network
did not have, and the learning rate is that of `po.fit`.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import report
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import posterity as po
from networks import mlp
from posterity.adaptation import Replay, select
from posterity.adaptation.solve.by_descent import descend, steps_on
from posterity.adaptation.solve.training import Settings
from posterity.learning.learners.variational import VariationalLearner
from posterity.posterior import Posterior

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
METHODS = ("po.adapt", "replay")
NEW = {"deeper": [64, 100, 100, 10], "convolutional": []}
Data = tuple[Tensor, Tensor]


def network(name: str) -> nn.Module:
    """The new network."""
    if name != "convolutional":
        return mlp(NEW[name])
    body = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *body)


def data(seed: int) -> tuple[Data, Data]:
    """1200 digits to learn from, and the others."""
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x, y = (x / 16).float()[order], y[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def replayed(model: nn.Module, posterior: Posterior, seed: int) -> nn.Module:
    """The labels of the memory, with the optimizer of `po.adapt`."""
    model, memory = copy.deepcopy(model), posterior.memory
    assert memory is not None
    settings = Settings(lr=VariationalLearner.usual_lr(model), seed=seed)
    penalty = Replay(memory, posterior.likelihood, batch_size=128)
    descend(model, penalty.over(posterior.n), steps_on(len(memory), settings), settings)
    return model


@torch.no_grad()
def scored(model: nn.Module, old: nn.Module, test: Data) -> report.Line:
    found, wanted = (m(test[0]).double().log_softmax(1) for m in (model, old))
    return {
        "accuracy": 100 * (found.argmax(1) == test[1]).double().mean().item(),
        "nll": nn.functional.nll_loss(found, test[1]).item(),
        "kl": (wanted.exp() * (wanted - found)).sum(1).mean().item(),
    }


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in options.seeds:
        train, test = data(seed)
        torch.manual_seed(seed)
        old = mlp([64, 50, 10])
        posterior = po.fit(old, train, seed=seed, progress=False).posterior
        yield {"seed": seed, "new": "", "method": "old network", "share": 0.0} | scored(old, old, test)
        for name in options.new:
            torch.manual_seed(100 + seed)
            new = network(name)
            line = {"seed": seed, "new": name}
            for share in SHARES:
                kept = select(old, posterior, train, round(share * len(train[1])), seed=seed)
                known = po.Posterior.of(
                    old, posterior.structure, prior=posterior.prior, n=posterior.n, ess=posterior.ess,
                    likelihood=posterior.likelihood, memory=kept, training=posterior.training,
                )  # fmt: skip
                models = {"po.adapt": po.adapt(old, known, into=new, seed=seed).model}
                models["replay"] = replayed(new, known, seed)
                for method, model in models.items():
                    yield line | {"method": method, "share": share} | scored(model, old, test)
            fresh = po.fit(copy.deepcopy(new), train, seed=seed, progress=False).model
            yield line | {"method": "retraining", "share": 1.0} | scored(fresh, old, test)


COLUMNS = {"accuracy": ("accuracy, %", 1), "nll": ("NLL", 3), "kl": ("KL from the old network", 3)}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Into another architecture", lines, seeds=seeds)
    text += "\n" + (__doc__ or "").strip() + "\n"
    old = [line for line in lines if line["method"] == "old network"]
    cells = (f"{title} {report.spread([line[key] for line in old], d)}" for key, (title, d) in COLUMNS.items())
    text += f"\nThe old network: {', '.join(list(cells)[:2])}.\n"
    for name in dict.fromkeys(line["new"] for line in lines if line["new"]):
        sizes = "-".join(map(str, NEW[name])) or "16 filters of 3 x 3, pooling, a linear layer"
        text += f"\n### A {name} network ({sizes})\n\n"
        rows = []
        for key, (title, digits) in COLUMNS.items():
            for method in (*METHODS, "retraining"):
                mine = [line for line in lines if (line["new"], line["method"]) == (name, method)]
                found = [[line[key] for line in mine if line["share"] == share] for share in SHARES]
                rows.append([title, method, *(report.spread(cell, digits) if cell else "" for cell in found)])
        text += report.table(["", "", *(f"{share:.0%}" for share in SHARES)], rows)
    report.publish("change_of_model", text, options.out)
    if options.pictures:
        draw(lines, Path(options.pictures))


def draw(lines: list[report.Line], folder: Path) -> None:
    """Accuracy against the share of the data that is remembered, a panel for each new network."""
    plt = report.drawing()
    names = list(dict.fromkeys(line["new"] for line in lines if line["new"]))
    figure, axes = plt.subplots(1, len(names), figsize=(5.4 * len(names), 5), layout="constrained", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for method, label in (("po.adapt", "po.adapt: old predictions"), ("replay", "replay: labels")):
            mine = [line for line in lines if (line["new"], line["method"]) == (name, method)]
            found = torch.tensor([[line["accuracy"] for line in mine if line["share"] == s] for s in SHARES])
            percent = [100 * s for s in SHARES]
            axis.errorbar(percent, found.mean(1), found.std(1), marker="o", capsize=3, label=label)
        for method, new, style in (("old network", "", "k:"), ("retraining", name, "k--")):
            level = [line["accuracy"] for line in lines if (line["method"], line["new"]) == (method, new)]
            axis.plot([2, 100], 2 * [sum(level) / len(level)], style, label=method)
        axis.set(xscale="log", xlabel="memory, % of the old data", title=f"into a {name} network")
        axis.set_xticks([100 * s for s in SHARES], [f"{100 * s:.0f}" for s in SHARES])
        axis.minorticks_off()
    figure.suptitle("A new architecture learns more from the old network's\npredictions than from the same labels")
    axes[0].set_ylabel("test accuracy, %")
    axes[0].legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "change_of_model.png", dpi=110, bbox_inches="tight")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments.add_argument("--new", nargs="+", default=list(NEW), choices=list(NEW))
    arguments.add_argument("--pictures", help="folder for the picture")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
