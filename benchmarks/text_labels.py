"""Labels that a text classifier needs: which texts to ask about, with a head on frozen MiniLM features.

    python benchmarks/text_labels.py --prepare FILE --encoder UNPACKED/model --data DATA
    python benchmarks/text_labels.py --features FILE --raw RESULTS
    python benchmarks/text_labels.py --collect RESULTS --out docs/benchmarks

Pools are training texts of TREC (6 classes), banking77 (77) and clinc150 (150), 3000 each, of SST-5 (5) and of single
sentences of reviews (2), 2000 each; the test is 500 texts of TREC and 1000 of the others. The classifier is the head of
`posterity fit`: a softmax regression on the 384 numbers of MiniLM (standardised), whose prior and whose temperature T
cross-validation chooses from the first labels. It is trained to its optimum after every round, as `posterity adapt`
does, and `po.acquire` chooses from its posterior with 64 draws. All criteria of a seed start from the same labels.
Rows with a T choose from the same posterior at that temperature. The default where there are classes, diverse_margin,
was chosen on TREC and banking77 with the seeds 0 to 7 and 0 to 2, with a fixed prior; nothing was chosen on the seeds
below or on the other sets. Given is the accuracy after so many labels, its mean over all rounds, and the number of
labels to reach the goal: the accuracy that random choice reaches with all labels of the study, on average over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import report
import torch
from torch import Tensor

import posterity as po
from posterity.runs.heads import choose_head, train_head
from posterity.runs.networks import HEAD, network
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Classes

TASKS = {
    "trec": (30, 30, 300),
    "banking77": (154, 77, 770),
    "clinc150": (300, 150, 1200),
    "sst5": (30, 30, 300),
    "uci_sentiment_sentences": (20, 20, 200),
}  # labels at the start, in a round, at the end
CHOSEN = ("trec", "banking77")
CRITERIA = ("random", "diverse_margin", "margin", "bald", "entropy", "k_centre")
POOL, TEST, FOLDS = {"sst5": 2000, "uci_sentiment_sentences": 2000}, 1000, 5
SEEDS = (10, 11, 12)
Data = tuple[Tensor, Tensor]


def prepare(options: argparse.Namespace) -> None:
    """Encode the texts, once."""
    from posterity.features import TextEncoder

    root, encoder = datasets.folder(options.data), TextEncoder(Path(options.encoder))
    arrays: dict[str, np.ndarray] = {}
    for task in TASKS:
        records = datasets.text(root, task)
        for split, found in _parts(records, POOL.get(task, 3000)).items():
            names = sorted({str(record["label"]) for record in records if record.get("split", "train") == "train"})
            arrays[f"{task}-{split}-x"] = encoder.encode([record["text"] for record in found]).astype(np.float16)
            arrays[f"{task}-{split}-y"] = np.array([names.index(str(record["label"])) for record in found], np.int16)
            print(task, split, len(found), flush=True)
    np.savez(options.prepare, **arrays)


def _parts(records: list[report.Line], pool: int) -> dict[str, list[report.Line]]:
    """Texts of the pool and of the test, from the splits of a set or, where it has none, at random."""
    if "split" not in records[0]:
        order = np.random.default_rng(0).permutation(len(records))
        return {"train": [records[i] for i in order[:pool]], "test": [records[i] for i in order[pool : pool + TEST]]}
    parts = {}
    for split, count in (("train", pool), ("test", TEST)):
        found = [record for record in records if record["split"] == split]
        parts[split] = [found[i] for i in np.random.default_rng(0).permutation(len(found))[:count]]
    return parts


def read(path: Path, task: str) -> tuple[Data, Data]:
    """Pool and test, standardised by the pool."""
    stored = np.load(path)
    x, y, u, v = (torch.from_numpy(stored[f"{task}-{part}"].astype(np.float64)) for part in
                  ("train-x", "train-y", "test-x", "test-y"))  # fmt: skip
    mean, std = x.mean(0), x.std(0)
    std = torch.where(std > 0, std, 1.0)  # a number of MiniLM that is the same for all texts
    return ((x - mean) / std, y.long()), ((u - mean) / std, v.long())


def curve(
    task: str, pool: Data, test: Data, criterion: str, seed: int, temperature: float | None
) -> Iterator[report.Line]:
    """Accuracy after every round."""
    start, step, most = TASKS[task]
    target = Classes("label", tuple(str(i) for i in range(int(pool[1].max()) + 1)))
    known = torch.randperm(len(pool[1]), generator=torch.Generator().manual_seed(seed))[:start]
    x, y = pool[0].float(), pool[1]
    settings = choose_head(Examples(x[known], y[known], known), target.outputs, FOLDS, seed).options()
    name = criterion if temperature is None else f"{criterion}, T = {temperature:g}"
    while True:
        begin = time.process_time()
        train = Examples(x[known], y[known], known)
        model = network(HEAD, tuple(x.shape[1:]), target.outputs, seed=seed)
        posterior = train_head(model, train, target, **settings).posterior
        with torch.no_grad():
            accuracy = (model(test[0].float()).argmax(1) == test[1]).double().mean().item()
        line = {"task": task, "criterion": name, "seed": seed, "labels": len(known), "accuracy": accuracy}
        yield line | settings
        if len(known) >= most:
            return
        asked = posterior if temperature is None else posterior.tempered(temperature)
        labelled = (train.inputs, train.targets, train.ids)
        picks = po.acquire(model, asked, x, step, criterion, labelled=labelled, exclude=known.tolist(), seed=seed)
        known = torch.cat([known, picks.ids])
        print(task, name, seed, len(known), round(accuracy, 4), round(time.process_time() - begin, 1), flush=True)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for seed in options.seeds:
        for task in options.tasks:
            pool, test = read(Path(options.features), task)
            for criterion in options.criteria:
                yield from curve(task, pool, test, criterion, seed, options.temperature)


def tables(lines: list[report.Line], out: str | None) -> None:
    text = report.header("Labels for a text classifier", lines)
    text += "\n" + (__doc__ or "").split("\n\n")[2] + "\n"
    absent = [task for task in TASKS if task not in {line["task"] for line in lines}]
    text += f"\nNot run with these seeds: {', '.join(absent)}.\n" if absent else ""
    for task in (task for task in TASKS if task not in absent):
        cold = sorted({line["temperature"] for line in lines if line["task"] == task})
        here = [line for line in lines if line["task"] == task]
        seeds = sorted({line["seed"] for line in here})
        counts = sorted({line["labels"] for line in here})
        shown = [counts[0], counts[len(counts) // 4], counts[len(counts) // 2], counts[-1]]
        goal = statistics.fmean(
            line["accuracy"] for line in here if (line["criterion"], line["labels"]) == ("random", counts[-1])
        )
        rows = []
        for criterion in sorted({line["criterion"] for line in here}, key=_place):
            mine = [line for line in here if line["criterion"] == criterion]
            cells = [report.spread([line["accuracy"] for line in mine if line["labels"] == n]) for n in shown]
            needed = [
                next((line["labels"] for line in mine if line["seed"] == seed and line["accuracy"] >= goal), None)
                for seed in sorted({line["seed"] for line in mine})
            ]
            mean = report.spread(
                [statistics.fmean(line["accuracy"] for line in mine if line["seed"] == seed) for seed in seeds]
            )
            rows.append([criterion, *cells, mean, ", ".join("–" if n is None else str(n) for n in needed)])
        heads = ["criterion", *(f"{n} labels" for n in shown), "all rounds", f"labels to {goal:.3f}, each seed"]
        role = "the default was chosen on this set" if task in CHOSEN else "nothing was chosen on this set"
        chosen = ", ".join(f"1/{1 / t:.0f}" for t in cold)
        text += f"\n### {task}\n\nSeeds {', '.join(map(str, seeds))}; T of the head {chosen}; {role}.\n"
        text += f"\n{report.table(heads, rows)}"
    report.publish("text_labels", text, out)


def _place(criterion: str) -> tuple[int, str]:
    """Criteria in their order, each before itself at other temperatures."""
    return CRITERIA.index(criterion.partition(",")[0]), criterion


def main() -> None:
    arguments = report.features_parser(__doc__)
    arguments.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    arguments.add_argument("--criteria", nargs="+", default=CRITERIA)
    arguments.add_argument("--temperature", type=float, help="of the posterior that chooses, in place of the head's")
    arguments.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    report.features_study(arguments.parse_args(), prepare, runs, tables)


if __name__ == "__main__":
    main()
