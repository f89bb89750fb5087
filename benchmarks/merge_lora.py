"""Five adapters of one sentiment model, merged into one: six kinds of reviews, MiniLM, LoRA of rank 8.

    python benchmarks/merge_lora.py --folder FOLDER --raw RESULTS --jobs 3
    python benchmarks/merge_lora.py --collect RESULTS --out docs/benchmarks

FOLDER is what `merge_quality.py --prepare` writes. The base is fine-tuned on IMDB, wholly; adapters learn Rotten
Tomatoes and four domains of Amazon beside it, with the base's head. Every method merges the same adapters through
`merge_adapters`, to rank 8 and to rank 40, which loses nothing. Task arithmetic and TIES are given with all weights 1
and with the common weight that is best on validation texts, of eleven; RegMean, gradient matching and Fisher averages
search nothing.
AdamW with learning rate 2e-4 (base) and 1e-3 (adapters), as in fine_tuning.py's grids; nothing was tuned here.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import merge_quality
import minilm
import report
import torch
from merge_quality import BASE, TASKS, Task
from torch import Tensor, nn

import posterity as po
from posterity.adapters import adapter_curvature, insert_lora, load_adapter, save_adapter
from posterity.batches import batches
from posterity.merging import gram_matrices
from posterity.merging.job import MergeSource
from posterity.merging.lora import merge_adapters

RANK, EPOCHS, SEEDS = 8, 2, (0, 1, 2)
WEIGHTS = [round(0.1 * i, 1) for i in range(1, 11)] + [1.5]
SEARCHED = ("task_arithmetic", "ties")
MEMORY = 2**31


def network(folder: Path, device: str) -> nn.Module:
    return minilm.load(folder / "minilm.safetensors", 2, 0).to(device)


def with_adapters(base: nn.Module, rank: int = RANK, seed: int = 0) -> nn.Module:
    """A copy of the base with adapters; α = 2r."""
    model = copy.deepcopy(base)
    torch.manual_seed(seed)
    insert_lora(model, ["query", "value", "inner", "outer"], rank=rank, alpha=2 * rank)
    return model


def train(model: nn.Module, data: tuple[Tensor, Tensor], lr: float, epochs: int, seed: int) -> None:
    po.fit(model, data, method="adamw", likelihood="categorical", epochs=epochs, batch_size=32, lr=lr, seed=seed,
           schedule="cosine", clip=1.0, prior=0.01 * len(data[1]), progress=False)  # fmt: skip


def accuracy(model: nn.Module, tasks: Mapping[str, Task], part: str) -> dict[str, float]:
    return {name: merge_quality.accuracy(model, getattr(task, part)) for name, task in tasks.items()}


def mean(scores: Mapping[str, float]) -> float:
    return sum(scores.values()) / len(scores)


def study(folder: Path, seed: int, epochs: int, limit: int | None) -> list[report.Line]:
    """Everything about one seed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    tasks = {name: merge_quality.read(folder, name, device, limit) for name in (BASE, *TASKS)}
    base = network(folder, device)
    train(base, tasks[BASE].train, 2e-4, epochs, seed)
    lines = [{"method": "base", "seed": seed, "scores": accuracy(base, tasks, "test")}]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        separate, curvatures, grams = {BASE: lines[0]["scores"][BASE]}, {}, {}
        for i, name in enumerate(TASKS):
            model = with_adapters(base, seed=100 * seed + i)
            train(model, tasks[name].train, 1e-3, epochs, 100 * seed + i)
            save_adapter(model, root / name)
            separate[name] = merge_quality.accuracy(model, tasks[name].test)
            found = adapter_curvature(model, tasks[name].train, "categorical", batch_size=256, memory=MEMORY)
            curvatures[name] = {module: t.cpu() for module, t in found.items()}
            inputs = gram_matrices(model, batches(tasks[name].train, batch_size=256))
            grams[name] = {weight: t.cpu() for weight, t in inputs.items() if ".base_layer." in weight}
        lines.append({"method": "separate models", "seed": seed, "scores": separate})
        start = adapter_curvature(with_adapters(base), tasks[BASE].train, "categorical", batch_size=256, memory=MEMORY)
        anchor = {module: t.cpu() for module, t in start.items()}
        for rank in (RANK, RANK * len(TASKS)):
            merged = with_adapters(base, rank)
            for method, weight in choices():
                out = root / f"{method}-{rank}-{weight}"
                sources = {name: MergeSource(root / name, weight) for name in TASKS}
                extra = {"curvatures": curvatures} if method in ("fisher", "gradient_matching") else {}
                if method == "regmean":
                    extra["curvatures"] = grams
                if method == "gradient_matching":
                    extra["base_precision"] = anchor
                merge_adapters(sources, out, method=method, rank=rank, **extra)
                _load(merged, out)
                common = {"method": method, "weight": weight, "rank": rank, "seed": seed}
                validation = mean(accuracy(merged, tasks, "validation"))
                lines.append(common | {"scores": accuracy(merged, tasks, "test"), "validation": validation})
    return lines


def _load(model: nn.Module, folder: Path) -> None:
    """Adapters that were merged keep the scale α/r of the first: bring it to the model's."""
    config = json.loads((folder / "adapter_config.json").read_text())
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.alpha = config["lora_alpha"]
    load_adapter(model, folder)


def choices() -> Iterator[tuple[str, float]]:
    yield from (("linear", 1.0), ("regmean", 1.0), ("fisher", 1.0), ("gradient_matching", 1.0))
    yield from ((method, weight) for method in SEARCHED for weight in WEIGHTS)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    folder, seeds = Path(options.folder), list(options.seeds)
    if options.jobs == 1:
        for seed in seeds:
            yield from study(folder, seed, options.epochs, options.limit)
        return
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for lines in pool.map(study, *zip(*((folder, seed, options.epochs, options.limit) for seed in seeds))):
            yield from lines


def tables(lines: list[report.Line], out: str | None) -> None:
    text = report.header("Five adapters merged", lines, seeds=sorted({line["seed"] for line in lines}), epochs=EPOCHS)
    text += "\n" + (__doc__ or "").split("\n\n")[2] + "\n"
    for rank in (RANK, RANK * len(TASKS)):
        rows = []
        for label, chosen in _rows([line for line in lines if line.get("rank", rank) == rank]):
            cells = [report.spread([line["scores"][task] for line in chosen], 1) for task in (BASE, *TASKS)]
            rows.append([label, *cells, report.spread([mean(line["scores"]) for line in chosen], 2)])
        text += f"\n### Rank {rank}: accuracy, %\n\n{report.table(['method', BASE, *TASKS, 'mean'], rows)}"
    report.publish("merge_lora", text, out)


def _rows(lines: list[report.Line]) -> Iterator[tuple[str, list[report.Line]]]:
    """Methods as they are, and those that search with their best weight on validation texts, seed by seed."""
    for method in ("base", "separate models", "linear", "regmean", "fisher", "gradient_matching"):
        yield method, [line for line in lines if line["method"] == method]
    for method in SEARCHED:
        mine = [line for line in lines if line["method"] == method]
        yield f"{method}, weights 1", [line for line in mine if line["weight"] == 1.0]
        seeds = dict.fromkeys(line["seed"] for line in mine)
        yield (
            f"{method}, searched",
            [max((line for line in mine if line["seed"] == s), key=lambda x: x["validation"]) for s in seeds],
        )


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--folder", help="what merge_quality.py --prepare wrote")
    arguments.add_argument("--jobs", type=int, default=1, help="processes at a time")
    arguments.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments.add_argument("--epochs", type=int, default=EPOCHS)
    arguments.add_argument("--limit", type=int, help="use only so many examples of each part (to try the script out)")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        tables(lines, options.out)


if __name__ == "__main__":
    main()
