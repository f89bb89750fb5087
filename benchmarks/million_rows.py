"""A million rows: `posterity fit` on a generated CSV beside scikit-learn, with time and memory.

Each way is a process of its own with one thread. It reads the file, learns from four fifths of its rows, and predicts
the rest; seconds are those of the processor from start to end, reading included, and memory is the largest resident
set. The table has ten numbers (one of them with missing values) and four categories of 3 to 40 levels; the classes are
drawn with a probability that bends, jumps and multiplies in the columns. `best possible` is the log loss of that
probability itself. Nothing was chosen on this table. Further rows show what the bounds of `posterity fit` cost: other
numbers of epochs, and the logistic regression of at most 50,000 rows that it compares itself with. That of scikit-learn
has all rows and no bins for numbers, so the two differ by more than their rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import report
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from tables import TARGET, prepared

from posterity import metrics

LEVELS = (3, 5, 12, 40)
FIGURES = ("nll", "ece", "accuracy")
OURS, PEERS = "posterity fit", ("logistic", "boosting")
LENGTHS = {OURS: None, f"{OURS}, 10 epochs": 10, f"{OURS}, 40 epochs": 40}


def write(rows: int, seed: int, path: Path) -> float:
    """Write the table, and return the log loss of the probability that its classes are drawn with."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 10)).round(4)
    levels = rng.integers(0, LEVELS, size=(rows, len(LEVELS)))
    effects = [rng.normal(size=count) for count in LEVELS]
    logit = 1.2 * np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.where(x[:, 3] > 0.5, 1, -0.5) * x[:, 4]
    logit += 0.5 * x[:, 5] ** 2 - 1 + 0.8 * (levels[:, 0] == 1) * x[:, 6]
    logit += 0.7 * sum(effect[level] for effect, level in zip(effects, levels.T))
    p = 1 / (1 + np.exp(-logit))
    y = rng.random(rows) < p
    table = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    table.loc[rng.random(rows) < 0.05, "x7"] = np.nan
    for number, level in enumerate(levels.T):
        table[f"kind{number}"] = [f"level {k}" for k in level]
    table[TARGET] = np.where(y, "yes", "no")
    table.to_csv(path, index=False)
    return float(-np.log(np.where(y, p, 1 - p)).mean())


def ours(path: Path, seed: int, epochs: int | None) -> report.Line:
    """`posterity fit`, without an option but the seed, or with a given length."""
    words = [
        "fit",
        str(path),
        "--target",
        TARGET,
        "--out",
        str(path.parent / "run"),
        "--json",
        "--seed",
        str(seed),
        "--overwrite",
    ]
    words += [] if epochs is None else ["--epochs", str(epochs)]
    done = subprocess.run([sys.executable, "-m", "posterity", *words], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    plain = [{"of": of} | figures for of, figures in found["baseline"].items()]
    return {name: found["metrics"][name] for name in FIGURES} | {"steps": found["steps"], "plain": plain}


def peer(by: str, path: Path, seed: int) -> report.Line:
    """A classifier of scikit-learn, in this process."""
    table = pd.read_csv(path)
    train, test = train_test_split(table, test_size=0.2, random_state=seed, stratify=table[TARGET])
    del table
    boosting = HistGradientBoostingClassifier(random_state=seed)
    model = LogisticRegression(max_iter=1000) if by == "logistic" else boosting
    fitted = make_pipeline(prepared(train, scale=by == "logistic"), model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(train.drop(columns=TARGET), train[TARGET])
        p = torch.tensor(fitted.predict_proba(test.drop(columns=TARGET)))
    y = torch.tensor((test[TARGET] == fitted.classes_[1]).to_numpy().astype("int64"))
    return {"nll": metrics.nll(p, y), "ece": metrics.ece(p, y), "accuracy": metrics.accuracy(p, y)}


def alone(by: str, path: Path, seed: int) -> report.Line:
    """One way in a process of its own, with what it cost."""
    began, threads = time.perf_counter(), dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    words = [sys.executable, __file__, "--one", by, "--file", str(path), "--seed", str(seed)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | threads)
    return json.loads(done.stdout) | {"wall": time.perf_counter() - began, "load": os.getloadavg()[0]}


def one(by: str, path: Path, seed: int) -> None:
    """Print the figures of one way, with the processor time and the memory of this process and those it started."""
    found = ours(path, seed, LENGTHS[by]) if by in LENGTHS else peer(by, path, seed)
    used = resource.getrusage(resource.RUSAGE_CHILDREN if by in LENGTHS else resource.RUSAGE_SELF)
    print(json.dumps(found | {"cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss / 2**20}))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        best = write(options.rows, options.seed, path)
        for by in options.ways:
            about = {"by": by, "rows": options.rows, "seed": options.seed, "best": best}
            yield about | {"bytes": path.stat().st_size} | alone(by, path, options.seed)


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    first = lines[0]
    facts = {"rows": f"{first['rows']:,}", "seed": first["seed"], "file": f"{first['bytes'] / 2**20:.0f} MiB"}
    text = report.header("A million rows", lines, **facts) + (__doc__ or "").split("\n\n", 1)[1] + "\n"
    columns = ["", "log loss", "ECE", "accuracy", "steps", "seconds of the processor", "rows a second", "memory, GiB"]
    rows = [
        [
            line["by"],
            *(f"{line[name]:.4f}" for name in FIGURES),
            f"{line['steps']:,}" if "steps" in line else "",
            f"{line['cpu']:.0f}",
            f"{line['rows'] / line['cpu']:,.0f}",
            f"{line['memory']:.1f}",
        ]
        for line in lines
    ]
    plain = {one["of"]: one for line in lines for one in line.get("plain", ())}
    for of, one in plain.items():
        rows.append([f"{of}, by `posterity fit`", *(f"{one[name]:.4f}" for name in FIGURES), *[""] * 4])
    rows.append(["best possible", f"{first['best']:.4f}", *[""] * 6])
    text += report.table(columns, rows)
    text += "\nSteps come after those of cross-validation. More rows get fewer epochs: 20,000 steps at most.\n"
    report.publish("million_rows", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--ways", nargs="+", choices=[*PEERS, *LENGTHS], default=[*PEERS, *LENGTHS])
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    arguments.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.one:
        one(options.one, options.file, options.seed)
    else:
        report.study(options, runs, publish)


if __name__ == "__main__":
    main()
