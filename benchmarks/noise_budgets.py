"""How much noise is worth: the test loss of `Variational` at fixed budgets, beside the gap that gradients tell.

    python benchmarks/untuned.py --data DATA --prepare PACKED
    python benchmarks/noise_budgets.py --packed PACKED --raw results.jsonl
    python benchmarks/noise_budgets.py --collect results.jsonl --out docs/benchmarks

The tasks are those that `untuned.py` chose its constants on, and nine further networks for their data, with seed 100.
The rule of `posterity.optim.gap` was chosen on this table.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import untuned
from report import gather, header, machine, parser, table
from torch import nn
from untuned_data import Arrays
from untuned_tasks import TASKS, Encoder, Recurrent, Task, outputs, words

from networks import mlp
from posterity.optim import Variational

SEED = 100
BUDGETS: tuple[float | None, ...] = (0.01, 0.03, 0.1, 0.3, None)


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
}
NAMES = [*(name for name, task in TASKS.items() if task.chosen_on), *FURTHER]


def runs(options: Any) -> Any:
    """AdamW, and `Variational` at each budget, on every task."""
    TASKS.update(FURTHER)
    for name in NAMES:
        found = untuned.run(Path(options.packed), name, "AdamW", SEED, options.toy)
        yield {"task": name, "budget": "AdamW", "nll": found["scores"][1], "machine": machine()}
        for budget in BUDGETS:
            untuned.Variational = functools.partial(Variational, budget=budget)  # type: ignore[misc,assignment]
            found = untuned.run(Path(options.packed), name, "Variational(AdamW)", SEED, options.toy)
            yield {"task": name, "budget": budget, "nll": found["scores"][1], "machine": machine()}


def publish(lines: list[dict[str, Any]], out: str | None) -> None:
    """The ratio to AdamW of each budget."""
    found = {(line["task"], line["budget"]): line for line in lines}
    known = dict.fromkeys(line["budget"] for line in lines if line["budget"] != "AdamW")
    budgets = sorted(known, key=lambda b: (isinstance(b, str), b is None, b or 0))  # words name rules that were tried
    rows: list[list[object]] = []
    logs: dict[float | str | None, list[float]] = {b: [] for b in budgets}
    for name in NAMES:
        if (name, "AdamW") not in found:
            continue
        nll, ratios = found[name, "AdamW"]["nll"], {}
        for budget in budgets:
            if (name, budget) in found:
                ratios[budget] = found[name, budget]["nll"] / nll
                logs[budget].append(math.log(ratios[budget]))
        rows.append([name, f"{nll:.3f}", *(f"{ratios[b]:.3f}" if b in ratios else "" for b in budgets)])
    rows.append(["geometric mean", "", *(f"{math.exp(sum(x) / len(x)):.3f}" for x in logs.values())])
    heads = ["automatic" if b is None else b if isinstance(b, str) else f"budget {b}" for b in budgets]
    text = header("How much noise is worth", lines, seeds=str(SEED))
    text += (
        "\nNLL of `Variational(AdamW)` as a multiple of AdamW's, one seed. These runs chose the automatic budget.\n\n"
    )
    text += table(["task", "NLL of AdamW", *heads], rows)
    print(text)
    if out:
        (Path(out) / "noise_budgets.md").write_text(text)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--packed", help="the packed data of untuned.py")
    arguments.add_argument("--toy", type=int, help="steps of every run, to try the script")
    options = arguments.parse_args()
    lines = gather(options, runs)
    if not options.raw:
        publish(lines, options.out)


if __name__ == "__main__":
    main()
