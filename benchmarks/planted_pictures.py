"""Wrong labels among pictures: `posterity map` beside five-fold logistic regression on pixels.

2000 pictures of Fashion-MNIST are written as files in folders named by their class; 5 % of them lie in a wrong one.
`posterity fit` and `posterity map` run with their defaults, which is a small convolutional network here. The other
ranking is what many do by hand: the probability of the given label by scikit-learn's LogisticRegression on pixels, out
of five folds. The table has the share of wrong labels among the first 20, 50 and 80 of each ranking, and the proposals
of ours: labels that are wrong with a probability above one half. Nothing was chosen on these pictures.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import report
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from posterity.cli import app
from posterity.runs import RunFolder

ROWS, SHARE, FIRST = 2000, 0.05, (20, 50, 80)
OURS, PEER = "posterity map", "logistic regression of pixels, five folds"


def planted(root: Path, seed: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Pictures, the labels that are given, and which of them are wrong."""
    x, y = datasets.digits_like(root, "FashionMNIST", "train")
    draw = np.random.default_rng(seed)
    rows = draw.permutation(len(y))[:ROWS]
    true = y[rows].numpy()
    wrong = np.zeros(ROWS, dtype=bool)
    wrong[draw.choice(ROWS, round(SHARE * ROWS), replace=False)] = True
    given = np.where(wrong, (true + draw.integers(1, 10, ROWS)) % 10, true)
    return x[rows], given, wrong


def ours(x: torch.Tensor, given: np.ndarray, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The probability that each label is wrong; the second array tells which rows `map` proposes to change."""
    names = []
    for k, (picture, label) in enumerate(zip(x, given)):
        path = folder / "pictures" / str(label) / f"{k:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture[0].numpy() * 255).astype(np.uint8)).save(path)
        names.append(f"{label}/{path.name}")
    run = str(folder / "run")
    words = ["fit", str(folder / "pictures"), "--test", "0", "--out", run, "--seed", str(seed), "--json"]
    for command in (words, ["map", run, "--json"]):
        answer = CliRunner().invoke(app, command, catch_exceptions=False)
        if answer.exit_code:
            raise SystemExit(answer.output)
    opened = RunFolder.open(Path(run))
    found = opened.records("train").merge(opened.table("memory"), on="id")
    place = {name: k for k, name in enumerate(names)}
    scores, proposed = np.empty(ROWS), np.zeros(ROWS, dtype=bool)
    for name, score, other in zip(found["file"], found["label_error"], found["suggested_label"]):
        scores[place[name]], proposed[place[name]] = score, score > 0.5 and other is not None
    return scores, proposed


def peer(x: torch.Tensor, given: np.ndarray) -> np.ndarray:
    """One minus the probability of the given label."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probs = cross_val_predict(model, x.flatten(1).numpy(), given, cv=5, method="predict_proba")
    return 1 - probs[np.arange(ROWS), given]


def lines(options: argparse.Namespace) -> Iterator[report.Line]:
    root = datasets.folder(options.data)
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        x, given, wrong = planted(root, seed)
        for by in (OURS, PEER):
            began, line = time.process_time(), {"seed": seed, "by": by}
            if by == OURS:
                with tempfile.TemporaryDirectory() as folder:
                    scores, proposed = ours(x, given, Path(folder), seed)
                line |= {"proposed": int(proposed.sum()), "right": int((proposed & wrong).sum())}
            else:
                scores = peer(x, given)
            order = np.argsort(-scores, kind="stable")
            line |= {str(k): float(wrong[order[:k]].mean()) for k in FIRST}
            yield line | {"seconds": time.process_time() - began}


def publish(found: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Wrong labels among pictures", found, pictures=ROWS, planted=f"{SHARE:.0%}")
    rows = []
    for by in (OURS, PEER):
        some = [line for line in found if line["by"] == by]
        figures = [report.spread([line[str(k)] for line in some], 2) for k in FIRST]
        proposals = (
            f"{sum(line['right'] for line in some)} of {sum(line['proposed'] for line in some)}" if by == OURS else ""
        )
        rows.append([by, len(some), *figures, proposals, f"{statistics.fmean(line['seconds'] for line in some):.0f}"])
    heads = [f"wrong among the first {k}" for k in FIRST]
    columns = ["ranking", "seeds", *heads, "proposals that are wrong labels", "seconds of the processor"]
    text += "\nShare of wrong labels, mean and spread over seeds:\n\n" + report.table(columns, rows)
    report.publish("planted_pictures", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    report.study(arguments.parse_args(), lines, publish)


if __name__ == "__main__":
    main()
