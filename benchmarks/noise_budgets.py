"""How much noise is worth: the test loss of `Variational` at fixed budgets, beside the one that follows the gap.

    python benchmarks/untuned.py --data DATA --prepare PACKED
    python benchmarks/noise_budgets.py --packed PACKED --raw results.jsonl --workers 15
    python benchmarks/noise_budgets.py --collect results.jsonl --out docs/benchmarks

The tasks are those that `untuned.py` chose its constants on, and others, with seed 100, some of them on made data.
The rule of `posterity.optim.gap` was chosen on this table.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import untuned
import workers
from report import header, parser, publish, table
from torch import nn
from untuned_data import Arrays
from untuned_tasks import GPT, TASKS, Encoder, Recurrent, Task, outputs, words
from untuned_tasks import table as perceptron

from networks import lenet, mlp

SEED = 100
TRIED = """\
Since this table the budget also falls where the noise meets less curvature than gradients promise, and where a network
learns late ([Where gradients are too large](doubt.md)) or is far from fitted ([New tasks](unseen.md)).
"""
BUDGETS: tuple[float | None, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, None)


def flat(widths: tuple[int, ...]) -> Any:
    """A perceptron on pictures."""
    return lambda d: nn.Sequential(nn.Flatten(), mlp((d["x"][0].numel(), *widths, outputs(d))))


def convolutions(data: Arrays) -> nn.Module:
    """Two convolutions without normalisation, and a hidden layer."""
    channels, size = data["x"].shape[1], data["x"].shape[2] // 4
    body = (nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    body += (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(64 * size * size, 128), nn.ReLU(), nn.Linear(128, outputs(data)))


FURTHER = {
    "digits 500, perceptron": Task("digits", flat((100,)), 64, 800),
    "digits 500, convolutions": Task("digits", convolutions, 64, 800),
    "USPS, convolutions": Task("usps", convolutions, 128, 1500),
    "USPS, perceptron": Task("usps", flat((256, 256)), 128, 1500),
    "Fashion-MNIST 12 000, perceptron": Task("fashion", flat((256, 256)), 128, 2500),
    "CIFAR-10 12 000, convolutions": Task("cifar", convolutions, 128, 2500, half=True),
    "TREC, GRU": Task("trec", lambda d: Recurrent(words(d), 6, nn.GRU), 64, 1500),
    "SST-2, transformer": Task("sst2", lambda d: Encoder(words(d), 2), 64, 2000, half=True),
    "SST-2, transformer, 150 steps (too short)": Task("sst2", lambda d: Encoder(words(d), 2), 64, 150, half=True),
    "digits 1200, perceptron": Task("all_digits", perceptron((100,)), 50, 360),
    "MNIST 3000, perceptron": Task("mnist", flat((256,)), 64, 1000),
    "MNIST 3000, perceptron, 85 epochs": Task("mnist", flat((256, 256)), 64, 4000),
    "MNIST 3000, LeNet": Task("mnist", lambda d: lenet(), 64, 1500),
    "Adult 6000, perceptron": Task("some_adult", perceptron((256, 256)), 128, 1500),
    "breast cancer 300, perceptron": Task("cancer", perceptron((64,)), 32, 500),
    "banking77, transformer": Task("banking", lambda d: Encoder(words(d), 77), 64, 2500, half=True),
    "Amazon reviews, GRU": Task("amazon", lambda d: Recurrent(words(d), outputs(d), nn.GRU), 64, 1200),
    "power, perceptron": Task("power", perceptron((128, 128)), 64, 3000, "amounts"),
    "concrete, perceptron": Task("concrete", perceptron((64, 64)), 32, 1500, "amounts"),
    "names, GPT": Task("names", lambda d: GPT(words(d), 128, 3), 32, 1500, "tokens", half=True),
    "fair, perceptron": Task("fair", perceptron((128, 128)), 64, 1500),
    "anes96, perceptron": Task("anes96", perceptron((64, 64)), 32, 600),
    "Friedman 8000, perceptron": Task("friedman_1", perceptron((128, 128)), 64, 3000, "amounts"),
    "Friedman 1400, perceptron": Task("friedman_2", perceptron((64, 64)), 32, 1500, "amounts"),
    **{f"teacher {k}, perceptron": Task(f"teacher_{k}", perceptron((256, 256)), 128, 3000) for k in (1, 2, 3)},
    **{f"rough classes {k}, perceptron": Task(f"rough_{k}", perceptron((256, 256)), 128, 3000) for k in (1, 2, 3, 4)},
    **{
        f"rough amounts {k}, perceptron": Task(f"rough_{k}", perceptron((128, 128)), 64, 4000, "amounts")
        for k in (5, 6)
    },
}
NAMES = [*(name for name, task in TASKS.items() if task.chosen_on), *FURTHER]


def jobs() -> list[tuple[str, str, float | None]]:
    """AdamW, and `Variational` at each budget, on every task."""
    alone = [(name, "AdamW", None) for name in NAMES]
    return alone + [(name, "Variational(AdamW)", budget) for budget in BUDGETS for name in NAMES]


def run(packed: Path, toy: int | None, name: str, method: str, budget: float | None) -> dict[str, Any]:
    """One training."""
    found = untuned.run(packed, toy, name, method, SEED, budget)
    accuracy, nll, _ = found["scores"]
    kind = "AdamW" if method == "AdamW" else budget
    return {"task": name, "budget": kind, "accuracy": accuracy, "nll": nll, "machine": found["machine"]}


def page(lines: list[dict[str, Any]]) -> str:
    """The ratio to AdamW of each budget."""
    found = {(line["task"], line["budget"]): line for line in lines}
    known = dict.fromkeys(line["budget"] for line in lines if line["budget"] != "AdamW")
    budgets = sorted(known, key=lambda b: (isinstance(b, str), b is None, b or 0))  # words name rules that were tried
    rows: list[list[object]] = []
    logs: dict[float | str | None, list[float]] = {b: [] for b in budgets}
    gains: dict[float | str | None, list[float]] = {b: [] for b in budgets}
    for name in NAMES:
        if (name, "AdamW") not in found:
            continue
        nll, ratios = found[name, "AdamW"]["nll"], {}
        for budget in budgets:
            if (name, budget) in found:
                ratios[budget] = found[name, budget]["nll"] / nll
                logs[budget].append(math.log(ratios[budget]))
                gains[budget].append(found[name, budget]["accuracy"] - found[name, "AdamW"]["accuracy"])
        rows.append([name, f"{nll:.3f}", *(f"{ratios[b]:.3f}" if b in ratios else "" for b in budgets)])
    shared = [name for name in NAMES if all((name, b) in found for b in (*budgets, "AdamW"))]
    means = [
        sum(math.log(found[n, b]["nll"] / found[n, "AdamW"]["nll"]) for n in shared) / len(shared) for b in budgets
    ]
    rows.append([f"geometric mean, {len(shared)} tasks", "", *(f"{math.exp(mean):.3f}" for mean in means)])
    whole = ["" if len(x) < len(rows) - 1 else f"{math.exp(sum(x) / len(x)):.3f}" for x in logs.values()]
    rows.append([f"geometric mean, all {len(rows) - 1}", "", *whole])
    rows.append(["largest", "", *(f"{math.exp(max(x)):.3f}" for x in logs.values())])
    rows.append(["mean change of accuracy, points", "", *(f"{100 * sum(x) / len(x):+.2f}" for x in gains.values())])
    heads = ["automatic" if b is None else b if isinstance(b, str) else f"budget {b}" for b in budgets]
    text = header("How much noise is worth", lines, seeds=str(SEED))
    text += (
        "\nNLL of `Variational(AdamW)` as a multiple of AdamW's, one seed. These runs chose the automatic budget.\n\n"
    )
    text += table(["task", "NLL of AdamW", *heads], rows)
    return f"{text}\n{TRIED}"


def main() -> None:
    arguments = workers.options(parser(__doc__))
    arguments.add_argument("--packed", help="the packed data of untuned.py")
    options = arguments.parse_args()
    if options.collect:
        publish("noise_budgets", page(workers.results(options.collect)), options.out)
    else:
        TASKS.update(FURTHER)
        workers.share(jobs(), functools.partial(run, Path(options.packed), options.toy), options)


if __name__ == "__main__":
    main()
