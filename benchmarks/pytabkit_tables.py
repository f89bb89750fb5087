"""Tables: `posterity fit` beside RealMLP and TabM of pytabkit.

As they come, both keep the epoch of the best validation accuracy, and RealMLP smooths labels: neither aims at log loss.
"For log loss" has the settings that pytabkit's documentation recommends for it: the epoch of the lowest validation log
loss, and no smoothing.
The tables and cuts are those of `tables.py`; pytabkit runs in an environment of its own (`--pytabkit PYTHON`), with its
tuned defaults, one thread and its own validation rows. Missing numbers are filled with the median for it. Seconds are
those of the processor, start-up included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import report
import torch
from sklearn.model_selection import train_test_split
from tables import CLASSES, OURS, TARGET, ours, table

from posterity import metrics

PEERS = ("RealMLP", "RealMLP, for log loss", "TabM", "TabM, for log loss")
FIGURES = ("nll", "ece", "accuracy")


def peer(by: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, python: str) -> report.Line:
    """A classifier of pytabkit, in its own process."""
    script = Path(__file__).with_name("pytabkit_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("train.csv", "test.csv")]
        for part, path in zip((train, test), paths):
            part.to_csv(path, index=False)
        words, one = [python, str(script), by, *paths, TARGET, str(seed)], {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(words, cwd=folder, env=os.environ | one, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    place = {name: k for k, name in enumerate(found["classes"])}
    p = torch.tensor(found["probs"], dtype=torch.float64).clamp_min(1e-15)
    y = torch.tensor([place[label] for label in test[TARGET]])
    return {"nll": metrics.nll(p, y), "ece": metrics.ece(p, y), "accuracy": metrics.accuracy(p, y)}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    done = {(line["table"], line["seed"], line["by"]) for line in report.earlier(options.raw)}
    for seed in options.seeds:
        for name in options.tables:
            everything = table(name, options.data)
            train, test = train_test_split(everything, test_size=0.25, random_state=seed, stratify=everything[TARGET])
            for by in (OURS, *PEERS):
                if (name, seed, by) in done:
                    continue
                before = _used()
                if by == OURS:
                    found = {
                        name: value for name, value in ours(train, test, "classes", seed).items() if name in FIGURES
                    }
                else:
                    found = peer(by, train, test, seed, options.pytabkit)
                about = {"table": name, "rows": len(everything), "seed": seed, "by": by}
                yield {**about, **found, "cpu": _used() - before}


def _used() -> float:
    """Seconds of the processor, of this process and of those it has started."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    ways = (OURS, *PEERS)
    found: dict[tuple[str, str], list[report.Line]] = {}
    done = {(line["table"], line["seed"], line["by"]) for line in lines}
    for line in lines:
        if all((line["table"], line["seed"], by) in done for by in ways):  # cuts that all ways were run on
            found.setdefault((line["table"], line["by"]), []).append(line)
    whole = [name for name in CLASSES if all((name, by) in found for by in ways)]
    text = report.header("Tables: `posterity fit` beside pytabkit", lines, pytabkit=options.version or "")
    text += "\n" + (__doc__ or "").split("\n\n", 1)[1]
    for figure, title, digits in (
        ("nll", "Log loss:", 3),
        ("ece", "ECE, 15 bins:", 3),
        ("accuracy", "Accuracy:", 3),
        ("cpu", "Seconds:", 1),
    ):
        rows = [
            [
                name,
                found[name, OURS][0]["rows"],
                len(found[name, OURS]),
                *(report.spread([line[figure] for line in found[name, by]], digits) for by in ways),
            ]
            for name in whole
        ]
        means = [[statistics.fmean(line[figure] for line in found[name, by]) for name in whole] for by in ways]
        rows.append(["mean", "", "", *(f"{statistics.fmean(some):.{digits}f}" for some in means)])
        text += f"\n{title}\n\n" + report.table(["table", "rows", "cuts", *ways], rows)
    report.publish("pytabkit_tables", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--pytabkit", help="the Python of an environment with pytabkit")
    arguments.add_argument("--version", help="of pytabkit, for the header")
    arguments.add_argument("--tables", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0])
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
