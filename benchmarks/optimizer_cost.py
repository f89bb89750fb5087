"""What IVON and Variational cost: one full cycle (sample, restore, step) beside AdamW, and a whole training step.

Gradients are there beforehand in the first table, so that only the optimizer is measured. All variants run in turn, so
that a busy machine hits all alike; medians of wall and of processor time. Measuring begins after ten steps, in which
IVON measures its statistics every time, and twenty, in which Variational has no noise. The first call begins with an
empty cache folder and so shows the compiling of the kernels, which the next process is spared. ivon-opt is measured
through another interpreter where POSTERITY_IVON_OPT_PYTHON names one that has it. `--device cuda` makes the tables of
`gpu_cost.py` instead.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Cycle = Callable[[], None]
Times = dict[str, list[float]]
WARM = 24  # steps before the first measurement


def parameters(count: int, tensors: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    found = [nn.Parameter(torch.randn(count // tensors)) for _ in range(tensors)]
    for p in found:
        p.grad = torch.randn_like(p)
    return found


def plain(optimizer: torch.optim.Optimizer, *_: Any) -> Cycle:
    return optimizer.step


def sampled(optimizer: torch.optim.Optimizer, gradients: list[Tensor], options: dict[str, bool]) -> Cycle:
    """Sample, restore and step; the gradients appear inside the context, as a backward pass would leave them."""
    every = [p for group in optimizer.param_groups for p in group["params"]]

    def cycle() -> None:
        for p in every:
            p.grad = None
        with optimizer.sampled_params(train=True, **options):  # type: ignore[attr-defined]
            for p, gradient in zip(every, gradients, strict=True):
                p.grad = gradient
        optimizer.step()

    return cycle


def training(optimizer: torch.optim.Optimizer, model: nn.Module, batch: int, options: dict[str, bool]) -> Cycle:
    inputs, targets = torch.randn(batch, 784), torch.randint(10, (batch,))

    def step() -> None:
        if hasattr(optimizer, "sampled_params"):
            with optimizer.sampled_params(train=True, **options):
                cross_entropy(model(inputs), targets).backward()
        else:
            cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 300), nn.ReLU(), nn.Linear(300, 10))


def variants() -> dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]:
    if "--ivon-opt" in sys.argv:
        import ivon  # type: ignore[import-not-found]

        return {"AdamW fused": adamw, "ivon-opt": lambda params: ivon.IVON(params, lr=0.1, ess=1e6)}
    from posterity.optim import IVON, Variational

    def variational(params: list[nn.Parameter], **options: bool) -> Variational:
        return Variational(torch.optim.AdamW(params), n=1e6, batch_size=128, total_steps=10_000, **options)

    return {
        "AdamW fused": adamw,
        "AdamW foreach": lambda params: torch.optim.AdamW(params, foreach=True),
        "SGD, momentum, fused": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, fused=True),
        "IVON": lambda params: IVON(params, lr=0.1, ess=1e6),
        "IVON, until_step": lambda params: IVON(params, lr=0.1, ess=1e6),
        "IVON, tensor operations": lambda params: IVON(params, lr=0.1, ess=1e6, fused=False),
        "Variational(AdamW)": variational,
        "Variational(AdamW), until_step": variational,
        "Variational(AdamW), tensor operations": lambda params: variational(params, fused=False),
    }


def options_of(name: str) -> dict[str, bool]:
    """What the sampling context of a variant is asked for."""
    return {"until_step": True} if "until_step" in name else {}


def adamw(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, fused=True)


def measure(cycles: dict[str, Cycle], repeats: int) -> Times:
    """Medians (wall, processor, first call) of each cycle, run in turn."""
    first = {name: _clocks(cycle)[0] for name, cycle in cycles.items()}
    for cycle in cycles.values():
        for _ in range(WARM):
            cycle()
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in cycles}
    for _ in range(repeats):
        for name, cycle in cycles.items():
            runs[name].append(_clocks(cycle))
    return {name: [*(statistics.median(t) for t in zip(*r, strict=True)), first[name]] for name, r in runs.items()}


def _clocks(function: Cycle) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processor


def optimizer_times(count: int, tensors: int, repeats: int) -> Times:
    cycles = {}
    for name, make in variants().items():
        params = parameters(count, tensors)
        optimizer = make(params)
        kind = sampled if hasattr(optimizer, "sampled_params") else plain
        cycles[name] = kind(optimizer, [p.grad for p in params if p.grad is not None], options_of(name))
    return measure(cycles, repeats)


def training_times(batch: int, repeats: int) -> Times:
    cycles = {}
    for name, make in variants().items():
        model = mlp()
        cycles[name] = training(make(list(model.parameters())), model, batch, options_of(name))
    return measure(cycles, repeats)


def draw_times(count: int, repeats: int) -> Times:
    """One draw of a diagonal posterior, by C and by tensor operations; one tensor and many."""
    from posterity import noise
    from posterity.posterior import Diagonal

    def drawing(parts: int, large: int) -> Cycle:
        sizes = {str(k): count // parts for k in range(parts)}
        posterior = Diagonal(
            {name: torch.zeros(size) for name, size in sizes.items()},
            {name: torch.ones(size) for name, size in sizes.items()},
        )

        def cycle() -> None:
            noise.LARGE = large
            posterior.sample(1)

        return cycle

    ways = {"C": noise.LARGE, "tensor operations": 1 << 62}
    cycles = {f"{parts} tensors, {name}": drawing(parts, n) for parts in (1, 16) for name, n in ways.items()}
    return measure(cycles, repeats)


def elsewhere(arguments: list[str]) -> dict[str, Times]:
    """The same measurements for ivon-opt, by the interpreter that has it; AdamW again as the yardstick there."""
    python = os.environ.get("POSTERITY_IVON_OPT_PYTHON")
    if not python:
        return {}
    command = [python, str(Path(__file__)), "--ivon-opt", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rows(times: Times, other: Times, unit: float) -> list[list[str]]:
    lines = []
    for source in (times, other):
        yardstick = source.get("AdamW fused")
        for name, (wall, processor, first) in source.items():
            if yardstick is None or (source is other and name == "AdamW fused"):
                continue
            ratios = f"{wall / yardstick[0]:.2f}", f"{processor / yardstick[1]:.2f}"
            lines.append([name, f"{wall / unit:.2f}", f"{processor / unit:.2f}", *ratios, f"{first:.2f} s"])
    return lines


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--together", type=int, default=10, help="cycles in one measurement on a GPU")
    parser.add_argument("--toy", action="store_true", help="the tables for a GPU at toy size, on any device")
    parser.add_argument("--profile", action="store_true", help="print where the time goes on a GPU, and no table")
    parser.add_argument("--out", help="folder for the finished table")
    parser.add_argument("--ivon-opt", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.device == "cuda" or options.toy:
        import gpu_cost
        import report

        if options.profile:
            print(gpu_cost.profiles(options))
        else:
            report.publish("optimizer_cost_gpu", gpu_cost.tables(options), options.out)
        return
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    cycle = optimizer_times(options.parameters, options.tensors, options.repeats)
    step = training_times(options.batch, options.repeats)
    if options.ivon_opt:
        print(json.dumps({"cycle": cycle, "step": step}))
        return
    import report

    names = ("parameters", "tensors", "batch", "repeats", "threads")
    other = elsewhere([text for name in names for text in (f"--{name}", str(getattr(options, name)))])
    columns = ["", "wall", "processor", "x AdamW (wall)", "x AdamW (processor)", "first call"]
    text = report.header("The cost of IVON and Variational", threads=options.threads, repeats=options.repeats)
    text += f"\nFull cycle, {options.parameters:,} parameters in {options.tensors} tensors, ns per parameter:\n\n"
    text += report.table(columns, rows(cycle, other.get("cycle", {}), options.parameters * 1e-9))
    text += f"\nWhole training step, MLP 784-500-300-10, batch {options.batch}, ms:\n\n"
    text += report.table(columns, rows(step, other.get("step", {}), 1e-3))
    text += (
        f"\nOne draw of a diagonal posterior for prediction, {options.parameters:,} parameters, ns per parameter:\n\n"
    )
    draws = draw_times(options.parameters, options.repeats)
    unit = options.parameters * 1e-9
    lines = [[name, f"{wall / unit:.2f}", f"{cpu / unit:.2f}"] for name, (wall, cpu, _) in draws.items()]
    text += report.table(["", "wall", "processor"], lines)
    report.publish("optimizer_cost", text, options.out)


if __name__ == "__main__":
    main()
