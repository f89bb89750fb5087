"""A perceptron in a stream: `po.Stream` beside AdamW that goes on training.

A perceptron of two layers of 64 learns each chunk after predicting it. `po.Stream` remembers 200 examples; its first
chunk is cross-validated with folds that are blocks of neighbouring rows (the default) or random. AdamW takes 300 steps
on the first chunk and 20 or 60 on each other, in batches of 32 at its usual learning rate. Log-loss and accuracy of
each chunk before it is learnt, over all chunks but the first.

The blocks were chosen on three other parts of electricity, on digits in a random order and on a boundary that turns
faster. Electricity: half-hours of New South Wales in their order, a week or two days a chunk, without the date.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from functools import partial

import datasets
import numpy as np
import report
import torch
import torch.nn.functional as F
from streams import Chunks, adult, digits, electricity, jumping, standardised, still, turning
from torch import Tensor, nn

import posterity as po

CHUNKS = 20
Tensors = list[tuple[Tensor, Tensor]]


def perceptron(chunks: Tensors) -> nn.Module:
    torch.manual_seed(0)
    classes = int(max(y.max() for _, y in chunks)) + 1
    inputs = chunks[0][0].shape[1]
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))


def ours(chunks: Tensors, **settings: object) -> tuple[float, float]:
    stream = po.Stream(perceptron(chunks), likelihood="categorical", progress=False, **settings)
    for chunk in chunks:
        stream.learn(chunk)
    return stream.history["accuracy"][1:].mean(), stream.history["loss"][1:].mean()


def adamw(chunks: Tensors, steps: int) -> tuple[float, float]:
    model = perceptron(chunks)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for number, (x, y) in enumerate(chunks):
        if number:
            f = model(x).detach()
            found.append(((f.argmax(-1) == y).double().mean().item(), F.cross_entropy(f, y).item()))
        for _ in range(steps if number else 300):
            rows = torch.randint(len(x), (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    accuracy, loss = np.mean(found, axis=0)
    return float(accuracy), float(loss)


WAYS = {
    "po.Stream": ours,
    "po.Stream, random folds": partial(ours, folds="random"),
    "po.Stream, forget=0": partial(ours, forget=0.0),
    "AdamW, 20 steps a chunk": partial(adamw, steps=20),
    "AdamW, 60 steps a chunk": partial(adamw, steps=60),
}


def streams(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, Chunks]]:
    yield "turning slowly", turning(seed, 0.03)
    yield "jumping", jumping(seed)
    yield "standing still", still(seed)
    yield "turned digits", digits(seed)
    if seed == options.seeds[0]:
        root = datasets.folder(options.data)
        weeks = electricity(root)
        yield "electricity, weeks", weeks[40:]
        x, y = (np.concatenate(column) for column in zip(*weeks[100:112]))
        yield "electricity, two days", [(x[i : i + 96], y[i : i + 96]) for i in range(0, CHUNKS * 96, 96)]
        yield "adult by age", adult(root, seed)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed in options.seeds:
        for name, raw in streams(options, seed):
            chunks = [(torch.tensor(x).float(), torch.tensor(y)) for x, y in standardised(raw[:CHUNKS])]
            for way, run in WAYS.items():
                start = time.process_time()
                accuracy, loss = run(chunks)
                yield {"stream": name, "way": way, "seed": seed, "accuracy": 100 * accuracy, "loss": loss,
                       "seconds": time.process_time() - start}  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Networks in a stream", lines, seeds="0 to 2 for made streams and digits, 0 for others")
    text += "\n" + (__doc__ or "").strip() + "\n"
    names = list(dict.fromkeys(line["stream"] for line in lines))
    for title, key, places in (("Log-loss", "loss", 3), ("Accuracy, %", "accuracy", 1), ("Seconds", "seconds", 0)):
        rows = []
        for way in WAYS:
            cells = [[x[key] for x in lines if (x["stream"], x["way"]) == (name, way)] for name in names]
            rows.append([way, *(report.spread(cell, places) for cell in cells)])
        text += f"\n### {title}\n\n" + report.table(["", *names], rows)
    report.publish("network_streams", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
