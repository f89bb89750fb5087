"""Adapting networks of other kinds than `adapt_baselines.py`: convolutions, words, and regression.

A network is trained by `po.fit` at its defaults; then 8 % of its targets, which were wrong, are corrected or removed,
one is corrected, or a tenth of the data is added. Rows as in `adapt_baselines.py`. "Loss" is the log-loss on test data,
of regressions the squared error in units of the targets' variance. "Distance" is the KL from the predictions of
retraining, of regressions the mean squared difference. Time is processor time, in per cent of retraining.

A convolutional network of two layers on 600 pictures of KMNIST and a mean of learnt word vectors with a hidden layer
on 800 sentences of Rotten Tomatoes have one seed; a perceptron of two layers of 64 on 400 rows of tables of amounts has
three. What regressions do differently was chosen on energy, kin8nm and boston with the seeds 10 and 11, before these
were run; nothing was chosen on the other data. The networks of words and pictures are overconfident from the first
training on: `po.fit` searches the length of perceptrons alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import datasets
import report
import torch
from adapt_baselines import Problem, Trainer, cut, mlp, one
from torch import Tensor, nn

SETS = ("KMNIST, convolutions", "Rotten Tomatoes, words", "power", "concrete", "yacht", "energy", "kin8nm", "boston")
CHOSEN = ("energy", "kin8nm", "boston")
CHANGES = ("relabel one", "relabel 8 %", "remove 8 %", "add 10 %")
VOCABULARY, LENGTH, ROWS = 5000, 40, 400
WARM, QUARTER = "warm start, same time", "warm start, a quarter"
WITHOUT, REPLAY = "without old data", "replay, same memory and time"


class Words(nn.Module):
    """Numbers of words (N, LENGTH), 0 where there is none, to logits."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.vectors = nn.Embedding(VOCABULARY + 1, width, padding_idx=0)
        self.top = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """The mean vector of the words there are, and two layers."""
        there = (x > 0).unsqueeze(-1).float()
        return self.top((self.vectors(x) * there).sum(1) / there.sum(1).clamp_min(1))


def convolutions(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def perceptron(columns: int) -> Callable[[int], nn.Module]:
    return lambda k: nn.Sequential(*mlp(columns, 64)(64), nn.ReLU(), nn.Linear(64, k))


def problem(name: str, options: argparse.Namespace, seed: int) -> Problem:
    root = datasets.folder(options.data)
    if name.startswith("KMNIST"):
        x, y = datasets.digits_like(root, "KMNIST_test", "t10k")
        return Problem(*cut(x, y, 600, seed), 10, convolutions)
    if name.startswith("Rotten"):
        records = datasets.text(root, "rotten_tomatoes")
        words = [record["text"].lower().split()[:LENGTH] for record in records]
        usual = {
            word: i + 1
            for i, (word, _) in enumerate(Counter(w for text in words for w in text).most_common(VOCABULARY))
        }
        rows = [torch.tensor([usual[w] for w in text if w in usual], dtype=torch.int64) for text in words]
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        names = sorted({record["label"] for record in records})
        y = torch.tensor([names.index(record["label"]) for record in records])
        return Problem(*cut(x, y, 800, seed), len(names), Words)
    raw = datasets.uci_regression(root, name)
    x, y = (torch.tensor(raw[key]).float() for key in ("X", "y"))
    train, test = cut(x, y.reshape(-1, 1), min(ROWS, int(0.7 * len(y))), seed)
    (m, s), (m_y, s_y) = ((t.mean(0), t.std(0).clamp_min(1e-6)) for t in train)
    train, test = (((a - m) / s, (b - m_y) / s_y) for a, b in (train, test))
    return Problem(train, test, 1, perceptron(x.shape[1]))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for seed in options.seeds:
        for name in options.sets:
            trained = Trainer(problem(name, options, seed), "variational", None)
            for kind in options.changes:
                for line in one(trained, kind, seed):
                    yield {"set": name, "change": kind, "seed": seed, **line}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Adapting other networks", lines, seeds=sorted({line["seed"] for line in lines}))
    text += "\n" + (__doc__ or "").strip() + "\n"
    names = list(dict.fromkeys(line["set"] for line in lines))
    for title, sets in (
        ("Data that nothing was chosen on", [name for name in names if name not in CHOSEN]),
        ("Data that chose what regressions do", [name for name in names if name in CHOSEN]),
    ):
        if sets:
            text += f"\n### {title}\n\n" + tables([line for line in lines if line["set"] in sets])
    report.publish("adapt_networks", text, options.out)


def tables(lines: list[report.Line]) -> str:
    """With the old data, and for additions without them."""
    rows, fewer = [], []
    found = dict.fromkeys((line["set"], line["change"]) for line in lines)
    for name, kind in sorted(found, key=lambda pair: (SETS.index(pair[0]), CHANGES.index(pair[1]))):
        mine = [line for line in lines if (line["set"], line["change"]) == (name, kind)]

        def cell(way: str, key: str, digits: int = 3, mine: list[report.Line] = mine) -> str:
            return report.spread([line[key] for line in mine if line["way"] == way], digits)

        losses = [cell(way, "nll") for way in ("nothing", "po.adapt", WARM, QUARTER, "retraining")]
        distances = [cell(way, "kl") for way in ("po.adapt", WARM, "another retraining")]
        rows.append([name, kind, *losses, *distances, cell("po.adapt", "time", 0)])
        if any(line["way"] == WITHOUT for line in mine):
            ways = ("nothing", WITHOUT, REPLAY, "po.adapt", "retraining")
            fewer.append([name, *(cell(way, "nll") for way in ways), cell(WITHOUT, "time", 0)])
    heads = ["data", "change", "loss, nothing", "loss, po.adapt", "loss, warm start", "loss, warm start, a quarter"]
    heads += [
        "loss, retraining",
        "distance, po.adapt",
        "distance, warm start",
        "distance, another retraining",
        "time, %",
    ]
    text = report.table(heads, rows)
    if fewer:
        heads = [
            "data",
            "loss, nothing",
            "loss, po.adapt without old data",
            "loss, replay",
            "loss, po.adapt",
            "loss, retraining",
        ]
        text += "\nA tenth is added, and of the old data one in ten is left:\n\n"
        text += report.table([*heads, "time without old data, %"], fewer)
    return text


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    arguments.add_argument("--changes", nargs="+", default=CHANGES, choices=CHANGES)
    arguments.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
