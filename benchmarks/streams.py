"""Streams of data in a world that moves or stands still: predict a chunk, then learn it.

`po.Stream` with a linear model at its defaults is compared with scikit-learn's logistic regression on the last chunk,
on the last three and on everything so far, and with `SGDClassifier.partial_fit`. "No change" repeats the label before.
With --river PYTHON, river's adaptive random forest is added. VOGN learns every chunk by `po.fit` with the last
posterior as prior and `forget="auto"` (20 passes, batches of a fifth of a chunk, at most 64). Accuracy and log-loss of
each chunk before it is learnt, over all chunks but the first. VOGN and river ran with one seed, on a part of the
streams.

Rates and decay of `po.Stream` were chosen on the made streams with the seeds 10 and 11, with a look at electricity.
That it may answer by the mean was decided on turned digits with the seed 10. The table has the seeds 0 to 2.
Electricity: half-hours of New South Wales in their order, one week a chunk, without the date. Adult: sorted by age.
Digits: turned by another three degrees every chunk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import report
import torch
from sklearn.linear_model import LogisticRegression, SGDClassifier
from torch import nn

import posterity as po

Chunks = list[tuple[np.ndarray, np.ndarray]]
RIVER = """
import json, sys
import numpy as np
from river import forest
data = np.load(sys.argv[1])
model, right, n, size = forest.ARFClassifier(seed=0), 0, 0, int(sys.argv[2])
for i, (x, y) in enumerate(zip(data["x"], data["y"])):
    row = dict(enumerate(map(float, x)))
    if i >= size:
        right += model.predict_one(row) == int(y)
        n += 1
    model.learn_one(row, int(y))
print(json.dumps(right / n))
"""


def turning(seed: int, speed: float, count: int = 40, size: int = 100) -> Chunks:
    """A boundary in two dimensions that turns by `speed` every chunk."""
    rng = np.random.default_rng(seed)
    found = []
    for t in range(count):
        x = rng.normal(size=(size, 2))
        w = 5 * np.array([np.cos(speed * t), np.sin(speed * t)])
        found.append((x, (rng.uniform(size=size) < 1 / (1 + np.exp(-x @ w))).astype(int)))
    return found


def jumping(seed: int, count: int = 40, size: int = 100, columns: int = 5) -> Chunks:
    """Another boundary every thirteen chunks."""
    rng = np.random.default_rng(seed)
    found, w = [], np.zeros(columns)
    for t in range(count):
        w = rng.normal(size=columns) * 1.5 if t % 13 == 0 else w
        x = rng.normal(size=(size, columns))
        found.append((x, (rng.uniform(size=size) < 1 / (1 + np.exp(-x @ w))).astype(int)))
    return found


def still(seed: int, count: int = 40, size: int = 50, columns: int = 10) -> Chunks:
    """The same boundary throughout."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=columns) * 0.7
    chunks = [rng.normal(size=(size, columns)) for _ in range(count)]
    return [(x, (rng.uniform(size=size) < 1 / (1 + np.exp(-x @ w))).astype(int)) for x in chunks]


def cut(x: np.ndarray, y: np.ndarray, size: int) -> Chunks:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(y) - size + 1, size)]


def electricity(root: Path) -> Chunks:
    found = np.load(root / "streams" / "electricity.npz")
    return cut(found["X"][:, 1:].astype(float), found["y"].astype(int), 336)


def adult(root: Path, seed: int) -> Chunks:
    """Every other row of Adult, sorted by age; ties by the seed."""
    frame = pd.read_csv(root / "tabular" / "adult.csv.gz", skipinitialspace=True)
    label = next(name for name in ("income", "label", "target", "class") if name in frame)
    y = frame[label].astype(str).str.contains(">50K").to_numpy().astype(int)
    frame = frame.drop(columns=[label, *(name for name in ("split",) if name in frame)])
    tie = np.random.default_rng(seed).uniform(size=len(frame))
    order = np.argsort(frame["age"].to_numpy() + 0.99 * tie)[::2]
    numbers = frame.select_dtypes("number")
    numbers = (numbers - numbers.mean()) / numbers.std()
    others = pd.get_dummies(frame.drop(columns=numbers.columns))
    x = np.concatenate((numbers, others.loc[:, others.mean() > 0.01].astype(float)), 1)
    return cut(x[order], y[order], 500)


def digits(seed: int) -> Chunks:
    """Digits that turn: three degrees more every chunk of 60, each digit as often as there are chunks for."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    found = []
    for t, (images, labels) in enumerate(cut(x[order] / 16, y[order], 60)):
        turned = rotate(images.reshape(-1, 8, 8), 3.0 * t, axes=(1, 2), reshape=False, order=1)
        found.append((turned.reshape(len(labels), -1), labels))
    return found


def standardised(chunks: Chunks) -> Chunks:
    """By the first chunk, as all that is known when a stream begins."""
    first = chunks[0][0]
    mean, std = first.mean(0), first.std(0)
    std = np.where(std < 1e-3, 1.0, std)
    return [(np.clip((x - mean) / std, -10, 10), y) for x, y in chunks]


def ours(chunks: Chunks, classes: int, forget: float | str) -> tuple[float, float]:
    binary = classes == 2
    model = nn.Linear(chunks[0][0].shape[1], 1 if binary else classes).double()
    stream = po.Stream(model, likelihood="bernoulli" if binary else "categorical", forget=forget)
    for x, y in chunks:
        targets = torch.tensor(y, dtype=torch.float64).unsqueeze(1) if binary else torch.tensor(y)
        stream.learn((torch.tensor(x), targets))
    history = stream.history.iloc[1:]
    return history["accuracy"].mean(), history["loss"].mean()


def vogn(chunks: Chunks, classes: int) -> tuple[float, float]:
    """Yesterday's posterior is today's prior."""
    binary = classes == 2
    model = nn.Linear(chunks[0][0].shape[1], 1 if binary else classes)
    for p in model.parameters():
        nn.init.zeros_(p)
    how = {"method": "vogn", "epochs": 20, "likelihood": "bernoulli" if binary else "categorical"}
    past: dict[str, Any] = {"prior": 1.0}
    right, loss = [], []
    for t, (x, y) in enumerate(chunks):
        inputs, labels = torch.tensor(x).float(), torch.tensor(y)
        if t:
            p = po.predict(model, past["prior"], inputs).probs.numpy()
            score(np.concatenate((1 - p, p), 1) if binary else p, y, right, loss)
        targets = labels.float().unsqueeze(1) if binary else labels
        run = po.fit(model, (inputs, targets), batch_size=min(64, len(y) // 5), seed=t, **how, **past)
        past = {"prior": run.posterior, "forget": "auto"}
    return float(np.mean(right)), float(np.mean(loss))


def regressions(chunks: Chunks, classes: int, memory: int | None) -> tuple[float, float]:
    right, loss = [], []
    for t in range(1, len(chunks)):
        seen = chunks[0 if memory is None else max(0, t - memory) : t]
        x, y = np.concatenate([c[0] for c in seen]), np.concatenate([c[1] for c in seen])
        if len(np.unique(y)) == 1:
            p = np.full((len(chunks[t][1]), classes), 1e-3)
            p[:, y[0]] = 1.0
        else:
            model = LogisticRegression(max_iter=1000).fit(x, y)
            p = np.full((len(chunks[t][1]), classes), 1e-6)
            p[:, model.classes_] = model.predict_proba(chunks[t][0])
        score(p, chunks[t][1], right, loss)
    return float(np.mean(right)), float(np.mean(loss))


def descent(chunks: Chunks, classes: int) -> tuple[float, float]:
    model, right, loss = SGDClassifier(loss="log_loss", random_state=0), [], []
    for t, (x, y) in enumerate(chunks):
        if t:
            score(model.predict_proba(x), y, right, loss)
        model.partial_fit(x, y, classes=np.arange(classes))
    return float(np.mean(right)), float(np.mean(loss))


def score(p: np.ndarray, y: np.ndarray, right: list[float], loss: list[float]) -> None:
    right.append((p.argmax(1) == y).mean())
    loss.append(-np.log(np.clip(p[np.arange(len(y)), y], 1e-6, 1)).mean())


def unchanged(chunks: Chunks) -> tuple[float, None]:
    y = np.concatenate([c[1] for c in chunks])
    start = len(chunks[0][1])
    return float((y[start:] == y[start - 1 : -1]).mean()), None


def forest(chunks: Chunks, python: str) -> tuple[float, None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        np.savez(path, x=np.concatenate([c[0] for c in chunks]), y=np.concatenate([c[1] for c in chunks]))
        size = str(len(chunks[0][1]))
        done = subprocess.run([python, "-c", RIVER, str(path), size], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)), None


def streams(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, Chunks]]:
    made = {
        "turning fast": lambda: turning(seed, 0.12),
        "turning slowly": lambda: turning(seed, 0.03),
        "jumping": lambda: jumping(seed),
        "standing still": lambda: still(seed),
        "turned digits": lambda: digits(seed),
    }
    for name, make in made.items():
        yield name, make()
    if seed == options.seeds[0]:
        root = datasets.folder(options.data)
        yield "electricity", electricity(root)
        yield "adult by age", adult(root, seed)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in options.seeds:
        for name, raw in streams(options, seed):
            if options.streams and name not in options.streams:
                continue
            chunks = standardised(raw)
            classes = int(max(y.max() for _, y in chunks)) + 1
            ways = {
                "po.Stream": partial(ours, chunks, classes, "auto"),
                "po.Stream, forget=0": partial(ours, chunks, classes, 0.0),
                "VOGN": partial(vogn, chunks, classes),
                "last chunk": partial(regressions, chunks, classes, 1),
                "last three": partial(regressions, chunks, classes, 3),
                "all": partial(regressions, chunks, classes, None),
                "SGD.partial_fit": partial(descent, chunks, classes),
                "no change": partial(unchanged, raw),
            }
            if options.river:
                ways["river, adaptive forest"] = partial(forest, chunks, options.river)
            for way, run in ways.items():
                if options.ways and way not in options.ways:
                    continue
                start = time.process_time()
                accuracy, loss = run()
                seconds = time.process_time() - start
                yield {"stream": name, "way": way, "seed": seed, "accuracy": 100 * accuracy, "loss": loss,
                       "seconds": seconds, "chunks": len(chunks)}  # fmt: skip


WAYS = (
    "po.Stream", "po.Stream, forget=0", "VOGN", "last chunk", "last three", "all", "SGD.partial_fit",
    "no change", "river, adaptive forest",
)  # fmt: skip
LINEAR = ("last chunk", "last three", "all", "SGD.partial_fit")


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header(
        "Streams: predict, then learn", lines, seeds="0 to 2 for made streams and digits, 0 for others"
    )
    text += "\n" + (__doc__ or "").strip() + "\n"
    names, found = (list(dict.fromkeys(line[key] for line in lines)) for key in ("stream", "way"))
    ways = [way for way in WAYS if way in found]
    for title, key, digits_ in (("Accuracy, %", "accuracy", 1), ("Log-loss", "loss", 3)):
        rows = []
        for way in ways:
            cells = []
            for name in names:
                mine = [x[key] for x in lines if (x["stream"], x["way"]) == (name, way) and x[key] is not None]
                cells.append(report.spread(mine, digits_) if mine else "")
            if any(cells):
                rows.append([way, *cells])
        text += f"\n### {title}\n\n" + report.table(["", *names], rows)
    gaps = beside_the_best(lines, names)
    text += "\n### Beside the best linear baseline, points of accuracy\n\n"
    rows = [[name, best, f"{gap:+.1f}"] for name, (best, gap) in gaps.items()]
    text += report.table(["stream", "best of the four", "po.Stream"], rows)
    report.publish("streams", text, options.out)
    if options.pictures:
        draw(lines, names, ways, Path(options.pictures))


def beside_the_best(lines: list[report.Line], names: list[str]) -> dict[str, tuple[str, float]]:
    """By stream, the best linear baseline, and the accuracy of `po.Stream` less that of it."""
    found = {}
    for name in names:
        compared = ("po.Stream", *LINEAR)
        mean = {w: np.mean([x["accuracy"] for x in lines if (x["stream"], x["way"]) == (name, w)]) for w in compared}
        best = max(LINEAR, key=lambda w: mean[w])
        found[name] = best, float(mean["po.Stream"] - mean[best])
    return found


def draw(lines: list[report.Line], names: list[str], ways: list[str], folder: Path) -> None:
    """Accuracy of each way on each stream, less that of `po.Stream`."""
    plt = report.drawing()
    figure, axis = plt.subplots(figsize=(12, 6.4), layout="constrained")
    shown = [way for way in ways if way != "po.Stream"]
    for number, (way, marker) in enumerate(zip(shown, "osDvP^X*")):
        found = [
            (i, [x["accuracy"] for x in lines if (x["stream"], x["way"]) == (n, way)]) for i, n in enumerate(names)
        ]
        points = [(i, values) for i, values in found if values]
        ours_ = [
            np.mean([x["accuracy"] for x in lines if (x["stream"], x["way"]) == (names[i], "po.Stream")][: len(values)])
            for i, values in points
        ]  # of the same seeds
        x = [i + 0.1 * (number - len(shown) / 2) for i, _ in points]
        axis.plot(x, [np.mean(v) - o for (_, v), o in zip(points, ours_)], marker, markersize=9, label=way)
    axis.axhline(0, color="k", linewidth=1)
    axis.text(len(names) - 0.45, 0.4, "po.Stream", ha="right")
    gaps = [gap for _, gap in beside_the_best(lines, names).values()]
    figure.suptitle(
        "Without settings, po.Stream is within one point of the best linear baseline\n"
        f"(last chunk, last three, all, SGD) on {sum(gap > -1 for gap in gaps)} of {len(gaps)} streams"
    )
    axis.set(ylabel="accuracy, points above po.Stream", ylim=(-32, 12), xlim=(-0.5, len(names) - 0.4))
    axis.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names])
    figure.legend(
        ncols=4, loc="outside lower center", frameon=False, title="not shown: points of “no change” below −32"
    )
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "streams.png", dpi=110, bbox_inches="tight")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--streams", nargs="+", help="only these")
    arguments.add_argument("--pictures", help="folder for the picture")
    arguments.add_argument("--ways", nargs="+", help="only these")
    arguments.add_argument("--river", help="a Python with river installed")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
