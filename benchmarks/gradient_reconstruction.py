"""How well a memory reconstructs the gradient of the past, against the share of the past that it holds.

A model learns 1000 digits. It is then trained on 200 others, turned by 90 degrees, without any memory, and so leaves
the weights at which the old data were learnt. At four points on that path, the gradient that each penalty gives is
compared with the true gradient of the old data and the prior: ‖∇penalty − ∇past‖ / ‖∇past‖, averaged over the path.
A softmax regression has a full posterior, a network (64-32-10, tanh) a diagonal one, both by `po.laplace` at a minimum.
The memory is random, or has the examples with the largest curvature Λ or leverage VΛ. Ours represents all data: its
examples have weights, and the posterior's curvature stands for the rest. As published, each example counts once.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import report
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import posterity as po
from networks import mlp
from posterity.adaptation import (
    FunctionDivergence,
    Penalty,
    Quadratic,
    Replay,
    k_prior,
    reconstruction_error,
    remember,
    select,
    weights_functions_labels,
)
from posterity.adaptation.penalties.kprior import prior_at_mean
from posterity.posterior import Memory, Posterior

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PRECISION = 1.0
Data = tuple[Tensor, Tensor]


def data(seed: int) -> tuple[Data, Data]:
    """1000 digits, and 200 others that are turned by 90 degrees."""
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:1200]
    x, y = (x / 16)[order], y[order]
    turned = x[1000:].reshape(-1, 8, 8).rot90(1, (1, 2)).reshape(-1, 64)
    return (x[:1000], y[:1000]), (turned, y[1000:])


def optimum(model: nn.Module, old: Data) -> nn.Module:
    """The model at a minimum of loss and prior."""
    steps = torch.optim.LBFGS(model.parameters(), max_iter=2000, tolerance_grad=1e-7, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(old[0]), old[1], reduction="sum")
        loss = loss + 0.5 * PRECISION * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    steps.step(objective)
    return model.eval()


def path(model: nn.Module, new: Data, points: int = 4) -> Iterator[nn.Module]:
    """Models on the way of a plain training on the new data."""
    moved = copy.deepcopy(model)
    adam = torch.optim.Adam(moved.parameters(), lr=3e-3)
    for _ in range(points):
        for _ in range(15):
            adam.zero_grad()
            nn.functional.cross_entropy(moved(new[0]), new[1]).backward()
            adam.step()
        yield copy.deepcopy(moved)


def replay(model: nn.Module, posterior: Posterior, memory: Memory) -> Penalty:
    """The memory with its labels, in place of all data, and the prior."""
    return Replay(memory, posterior.likelihood) + posterior.temperature * Quadratic(posterior.prior)


def published(model: nn.Module, posterior: Posterior, memory: Memory) -> Penalty:
    """Each remembered example counted once, and the prior around the old weights for everything else."""
    return FunctionDivergence(memory, posterior.likelihood) + posterior.temperature * Quadratic(
        prior_at_mean(posterior)
    )


Make = Callable[[nn.Module, Posterior, Memory], Penalty]
METHODS: dict[str, tuple[Make, str, bool]] = {  # the penalty, the rule of the memory, whether it represents all data
    "replay, random": (replay, "random", True),
    "K-prior, random": (k_prior, "random", True),
    "K-prior, leverage": (k_prior, "leverage", True),
    "K-prior as published, random": (published, "random", False),
    "K-prior as published, curvature": (published, "curvature", False),
    "K-prior as published, leverage": (published, "leverage", False),
    "K-prior and labels, random": (weights_functions_labels, "random", True),
}
MODELS = {"softmax regression": ([64, 10], "full"), "network": ([64, 32, 10], "diag")}


def mean_error(points: list[nn.Module], posterior: Posterior, past: Memory, penalty: Penalty) -> float:
    """The relative error of a penalty's gradient, averaged over points."""
    found = [reconstruction_error(penalty, point, posterior, past) for point in points]
    return sum(found) / len(found)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for name, (sizes, structure) in MODELS.items():
        for seed in options.seeds:
            old, new = data(seed)
            torch.manual_seed(seed)
            model = optimum(mlp(sizes, nn.Tanh).double(), old)
            posterior = po.laplace(model, old, structure=structure, prior_precision=PRECISION)
            error = partial(mean_error, list(path(model, new)), posterior, remember(model, old))
            line = {"model": name, "seed": seed}
            yield line | {"method": "no memory", "share": 0.0, "error": error(k_prior(model, posterior))}
            for method, (make, by, weighted) in METHODS.items():
                for share in SHARES:
                    size = round(share * len(old[1]))
                    memory = select(model, posterior, old, size, by=by, weighted=weighted, seed=seed)
                    yield line | {"method": method, "share": share, "error": error(make(model, posterior, memory))}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Gradients of the past from a memory", lines, seeds=seeds)
    text += "\n" + (__doc__ or "").strip() + "\n"
    for name in MODELS:
        rows = []
        for method in ("no memory", *METHODS):
            found = [line for line in lines if (line["model"], line["method"]) == (name, method)]
            cells = [[line["error"] for line in found if line["share"] == share] for share in (0.0, *SHARES)]
            rows.append([method, *(report.spread(cell) if cell else "" for cell in cells)])
        text += f"\n### A {name}\n\n" + report.table(["", *(f"{share:.0%}" for share in (0.0, *SHARES))], rows)
    report.publish("gradient_reconstruction", text, options.out)
    if options.pictures:
        draw(lines, Path(options.pictures))


def draw(lines: list[report.Line], folder: Path) -> None:
    """The errors against the share that is remembered, a panel for each model."""
    plt = report.drawing()
    figure, axes = plt.subplots(1, len(MODELS), figsize=(12, 6.4), layout="constrained", sharey=True)
    for axis, name in zip(axes, MODELS, strict=True):
        mine = [line for line in lines if line["model"] == name]

        def mean(method: str, share: float, mine: list[report.Line] = mine) -> float:
            found = [line["error"] for line in mine if (line["method"], line["share"]) == (method, share)]
            return sum(found) / len(found)

        axis.axhline(mean("no memory", 0.0), color="0.5", linewidth=1, label="no memory (posterior alone)")
        for number, method in enumerate(METHODS):
            values = [mean(method, share) for share in SHARES]
            dashed = ":" if "published" in method else "--" if "labels" in method else "-"
            axis.plot([100 * s for s in SHARES], values, dashed, marker="o", color=f"C{number}", label=method)
        axis.set(xscale="log", ylim=(0, 1.2), xlabel="memory, % of the past", title=f"a {name}")
        axis.set_xticks([100 * s for s in SHARES], [f"{100 * s:.0f}" for s in SHARES])
        axis.minorticks_off()
    figure.suptitle("A random tenth of the past, weighted to stand for all of it,\nrebuilds most of its gradient")
    axes[0].set_ylabel("error of the gradient of the past, relative")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "gradient_reconstruction.png", dpi=110, bbox_inches="tight")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--pictures", help="folder for the picture")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
