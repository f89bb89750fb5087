"""Swap nothing but the optimizer: AdamW as it comes, and the same AdamW inside `Variational`, on many small tasks.

    python benchmarks/untuned.py --data DATA --prepare PACKED          # pack the data into a small folder
    python benchmarks/untuned.py --packed PACKED --raw results.jsonl --workers 12
    python benchmarks/untuned.py --collect results.jsonl --out docs/benchmarks

One setting for all: lr 1e-3, weight decay 0.01, 5 % warm-up, cosine to zero; 32 samples of the weights predict. The
constants of the rule were chosen on the tasks marked so, with seed 100; the table shows seeds 0 to 2. With --beside,
other bases than AdamW and other learning rates run instead, for a page of their own.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import workers
from report import header, machine, parser, publish, table
from torch import Tensor, nn
from untuned_data import Arrays, load, prepare
from untuned_tables import tables, tables_beside, tables_chosen
from untuned_tasks import TASKS, WINDOW, Task

from posterity.optim import Variational

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HELD_OUT = 400  # training rows that temperature scaling gets, or that `Variational` watches
LAST = 0.03  # of a text, likewise: windows of a text overlap
SAMPLES = 32  # of the weights, whose predictions are averaged
FOUR = [
    "Fashion-MNIST 12 000, BatchNorm CNN",
    "rotten tomatoes, GRU",
    "CIFAR-10 12 000, mixer",
    "clinc150, transformer",
]
METHODS = {
    "AdamW": {},
    "Variational(AdamW)": {"variational": True},
    "AdamW + temperature": {"held_out": True},
    "Variational(AdamW), watching": {"held_out": True, "variational": True},
    "AdamW, lr 3e-4": {"lr": 3e-4},
    "AdamW, lr 3e-3": {"lr": 3e-3},
    "SGD": {"base": "sgd"},
    "Variational(SGD)": {"base": "sgd", "variational": True},
    "Muon": {"base": "muon"},
    "Variational(Muon)": {"base": "muon", "variational": True},
}


def jobs() -> list[tuple[str, str, int]]:
    """All runs, the most wanted first."""
    reported = [name for name, task in TASKS.items() if not task.chosen_on]
    chosen = [name for name, task in TASKS.items() if task.chosen_on]
    pair = ("AdamW", "Variational(AdamW)")
    wanted = [(t, m, s) for s in range(3) for t in reported for m in pair]
    wanted += [(t, m, s) for s in range(3) for t in chosen for m in pair]
    wanted += [(t, "AdamW + temperature", s) for s in range(3) for t in reported + chosen]
    wanted += [
        (t, "Variational(AdamW), watching", s)
        for s in range(3)
        for t in reported + chosen
        if TASKS[t].kind != "amounts"
    ]
    return wanted


def jobs_beside() -> list[tuple[str, str, int]]:
    """Runs with other bases, and with other learning rates of AdamW, the most wanted first."""
    reported = [name for name, task in TASKS.items() if not task.chosen_on]
    bases, rates = list(METHODS)[-4:], list(METHODS)[4:6]
    wanted = [(t, m, s) for s in range(3) for t in FOUR for m in bases]
    return wanted + [(t, m, 0) for t in reported for m in (*rates, "AdamW", "Variational(AdamW)")]


def batch_of(data: Arrays, task: Task, rows: Tensor, which: str = "") -> tuple[Tensor, Tensor]:
    """Inputs and targets of some rows (for language models: windows that begin there)."""
    if task.kind == "tokens":
        places = rows[:, None] + torch.arange(WINDOW, device=rows.device)
        return data[which + "x"][places], data[which + "x"][places + 1]
    return data[which + "x"][rows], data[which + "y"][rows]


def losses(f: Tensor, y: Tensor, kind: str) -> Tensor:
    """Negative log-likelihoods; amounts have a mean and a log-variance."""
    if kind == "amounts":
        log_variance = f[:, 1].clamp(-10, 10)
        return 0.5 * (log_variance + (y - f[:, 0]).square() * (-log_variance).exp() + math.log(2 * math.pi))
    return F.cross_entropy(f.float(), y, reduction="none")


def forward(model: nn.Module, x: Tensor, task: Task) -> Tensor:
    """Outputs, one row for each target."""
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=task.half and DEVICE.type == "cuda"):
        f = model(x)
    return f.reshape(-1, f.shape[-1]).float()


@torch.no_grad()
def outputs(model: nn.Module, data: Arrays, task: Task, rows: Tensor, which: str) -> tuple[Tensor, Tensor]:
    """Outputs and targets of rows, in evaluation mode."""
    model.eval()
    parts = [batch_of(data, task, part, which) for part in rows.split(256 if task.kind == "tokens" else 2000)]
    found = torch.cat([forward(model, x, task) for x, _ in parts]), torch.cat([y.reshape(-1) for _, y in parts])
    model.train()
    return found


def scores(samples: list[Tensor], y: Tensor, kind: str) -> tuple[float, float, float]:
    """Accuracy (R² for amounts), NLL and ECE (mean distance of the PIT from uniform) of an average over samples."""
    if kind == "amounts":
        likelihood = torch.stack([-losses(f, y, kind) for f in samples]).logsumexp(0) - math.log(len(samples))
        mean = torch.stack([f[:, 0] for f in samples]).mean(0)
        scaled = [(y - f[:, 0]) * (-0.5 * f[:, 1].clamp(-10, 10)).exp() for f in samples]
        pit = torch.stack([torch.special.ndtr(z) for z in scaled]).mean(0).sort().values
        error = (pit - torch.linspace(0, 1, len(pit), device=pit.device)).abs().mean()
        return float(1 - (y - mean).square().mean() / y.var()), -float(likelihood.mean()), float(error)
    log_probs = torch.stack([F.log_softmax(f, -1) for f in samples]).logsumexp(0) - math.log(len(samples))
    confidence, guess = log_probs.exp().max(-1)
    right, bins = (guess == y).float(), (confidence * 15).long().clamp(max=14)
    gaps = torch.zeros(15, device=y.device).index_add(0, bins, right - confidence).abs().sum() / len(y)
    return float(right.mean()), float(F.nll_loss(log_probs, y)), float(gaps)


def tempered(f: Tensor, temperature: float, kind: str) -> Tensor:
    """Outputs at a temperature: logits divided by it, variances multiplied."""
    if kind == "amounts":
        return torch.stack([f[:, 0], f[:, 1] + math.log(temperature)], 1)
    return f / temperature


def bases(model: nn.Module, base: str, lr: float) -> list[torch.optim.Optimizer]:
    """The optimizers of a method."""
    if base == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)]
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "head" not in name]
    if base == "muon" and hidden:
        rest = [p for p in model.parameters() if not any(p is q for q in hidden)]
        return [torch.optim.Muon(hidden, lr=0.02), torch.optim.AdamW(rest, lr=lr, weight_decay=0.01)]
    return [torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)]


def split(data: Arrays, task: Task, seed: int, hold: bool) -> tuple[Tensor | None, Tensor]:
    """Rows that are held out, if any are to be, and those to train on; of a text, where windows begin."""
    generator = torch.Generator().manual_seed(seed)
    if task.kind != "tokens":
        some = torch.randperm(len(data["y"]), generator=torch.Generator().manual_seed(1234))[: task.take]
        order = torch.randperm(len(some), generator=generator)
        order = order if task.take is None else some[order]
        count = min(HELD_OUT, len(order) // 10) if hold else 0
        return (order[:count].to(DEVICE) if hold else None), order[count:]
    rows = len(data["x"]) - WINDOW - 1
    first = int((1 - LAST) * rows) if hold else rows + WINDOW
    held = torch.arange(first, rows, WINDOW, device=DEVICE) if hold else None
    return held, torch.randperm(first - WINDOW, generator=generator)


def batches(pool: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Shuffled batches, epoch after epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = pool[torch.randperm(len(pool), generator=generator)].to(DEVICE)
        yield from order.split(size)[: len(order) // size]


def run(
    packed: Path, toy: int | None, name: str, method: str, seed: int, budget: float | None = None
) -> dict[str, Any]:
    """One training and its test scores.

    Args:
        packed: The folder of packed data.
        toy: Steps of every run, to try the script.
        name: The task.
        method: One of `METHODS`.
        seed: Of weights, batches and noise.
        budget: Of the noise, in nats per example; it follows the gap by default.
    """
    start, task, how = time.perf_counter(), TASKS[name], METHODS[method]
    torch.manual_seed(seed)
    data = {key: t.to(DEVICE) for key, t in load(packed, task.data).items()}
    model = task.network(data).to(DEVICE)
    held, pool = split(data, task, seed, how.get("held_out", False))
    steps = toy or task.steps
    moves = bases(model, how.get("base", "adamw"), how.get("lr", 1e-3))
    warm = max(1, int(0.05 * steps))
    rate = lambda t: min((t + 1) / warm, 1) * 0.5 * (1 + math.cos(math.pi * max(0.0, (t - warm) / (steps - warm))))  # noqa: E731
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, rate) for each in moves]
    tokens = WINDOW if task.kind == "tokens" else 1
    posterior = None
    if how.get("variational"):
        n = len(data["x"]) if task.kind == "tokens" else len(pool)
        size = min(task.batch * tokens, n)
        posterior = Variational(moves, n=n, total_steps=steps, batch_size=size, seed=seed, budget=budget)
        if held is not None:
            posterior.watch(model, batch_of(data, task, held), likelihood="categorical")
    source = batches(pool, min(task.batch, len(pool)), seed)
    for _ in range(steps):
        x, y = batch_of(data, task, next(source))
        if posterior is None:
            losses(forward(model, x, task), y.reshape(-1), task.kind).mean().backward()
            for each in moves:
                each.step()
                each.zero_grad()
        else:
            with posterior.sampled_params(train=True):
                losses(forward(model, x, task), y.reshape(-1), task.kind).mean().backward()
            posterior.step()
            posterior.zero_grad()
        for schedule in schedules:
            schedule.step()
    seconds = time.perf_counter() - start
    size = len(data["test_x"][: task.tested]) - (WINDOW + 1 if task.kind == "tokens" else 0)
    test = torch.arange(0, size, tokens, device=DEVICE)
    mean, y = outputs(model, data, task, test, "test_")
    found: dict[str, Any] = {"mean": scores([mean], y, task.kind)}
    if posterior is None and held is not None:
        f, target = outputs(model, data, task, held, "")
        grid = [2 ** (k / 4) for k in range(-4, 17)]
        best = min(grid, key=lambda t: float(losses(tempered(f, t, task.kind), target, task.kind).mean()))
        found["scores"] = scores([tempered(mean, best, task.kind)], y, task.kind)
    elif posterior is not None:
        samples, divisor = [], posterior.output_temperature()  # of the watched rows, if there are any
        for _ in range(SAMPLES):
            with posterior.sampled_params():
                samples.append(outputs(model, data, task, test, "test_")[0] / divisor)
        grown = float(posterior.meter.total / posterior.meter.settled.clamp_min(1e-30))
        found |= {"scores": scores(samples, y, task.kind), "temperature": posterior.temperature, "grown": grown}
    else:
        found["scores"] = found["mean"]
    return {"task": name, "method": method, "seed": seed, "seconds": seconds, "machine": machine(), **found}


def main() -> None:
    arguments = workers.options(parser(__doc__))
    arguments.add_argument("--prepare", help="pack the data into this folder, and stop")
    arguments.add_argument("--packed", help="the packed data")
    arguments.add_argument("--beside", action="store_true", help="other bases and learning rates instead")
    options = arguments.parse_args()
    if options.prepare:
        prepare(Path(options.data), Path(options.prepare))
    elif options.collect:
        lines = workers.results(options.collect)
        if options.beside:
            text = header("Other optimizers and learning rates in `Variational`", lines)
            publish("untuned_bases", text + tables_beside(lines, table), options.out)
        else:
            text = header("A posterior without tuning", lines, seeds="0, 1, 2; constants chosen with seed 100")
            publish("untuned", text + tables(lines, table), options.out)
            if any(TASKS[line["task"]].chosen_on for line in lines):
                text = header("A posterior without tuning: tasks that chose it", lines, seeds="0, 1, 2")
                publish("untuned_chosen", text + tables_chosen(lines, table), options.out)
    else:
        wanted = jobs_beside() if options.beside else jobs()
        workers.share(wanted, functools.partial(run, Path(options.packed), options.toy), options)


if __name__ == "__main__":
    main()
