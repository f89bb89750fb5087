"""How the cost of IVON grows with parameters, samples and processes, and what a billion parameters would need.

Only the optimizer is measured: gradients are there beforehand, a cycle is sample, restore and step. Times are the
smallest of several cycles, on a CPU the processor time of one process with one thread (other people's work does not
count), on a GPU wall time. Processes talk by gloo on this machine; the size of their messages is counted, not timed.
The last table is arithmetic on the rows above it: bytes a parameter as counted, nanoseconds a parameter as measured
(or given by --cycle-ns, from benchmarks/optimizer_cost.py on a GPU), messages by --bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import report
import torch
import torch.distributed as dist
from torch import Tensor, nn

from posterity.optim import IVON

ROWS, BILLION = 1000, 1_000_000_000
MODES = {"shared": "replicas, shared noise", "per_rank": "replicas, a sample on each", "shards": "shards"}


def model_of(count: int, device: str) -> nn.Module:
    """Ten square-ish matrices with that many weights in all."""
    torch.manual_seed(0)
    return nn.ParameterList([torch.randn(ROWS, count // (10 * ROWS)) for _ in range(10)]).to(device)


def cycle(optimizer: IVON, gradients: list[Tensor], samples: int, local: bool) -> None:
    """Samples in place and away again with their gradients, then a step."""
    every = optimizer.param_groups[0]["params"]
    for p in every:
        p.grad = None
    for _ in range(samples):
        with optimizer.sampled_params(train=True):
            for p, g in zip(every, gradients, strict=True):
                if local:  # through a backward pass, because products are taken there
                    (p * g).sum().backward()
                elif samples == 1:
                    p.grad = g
                else:
                    p.grad = g.clone() if p.grad is None else p.grad.add_(g)
    optimizer.step()


def smallest(function: Callable[[], None], runs: int) -> float:
    function()
    return min(_seconds(function) for _ in range(runs))


def _seconds(function: Callable[[], None]) -> float:
    cuda = torch.cuda.is_available()
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
    start = clock()
    function()
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


def held(optimizer: IVON) -> int:
    """Bytes kept here beside parameters and gradients: the state, and what samples keep until the step."""
    state = [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, Tensor)]
    kept = [t for k in optimizer._samples.statistics.kept.values() for t in (k.buffer, *k.sums().values())]
    return sum(getattr(t, "_local_tensor", t).nbytes for t in state + kept)


def measured(model: nn.Module, options: argparse.Namespace, samples: int = 1, **settings: Any) -> report.Line:
    optimizer = IVON(model.parameters(), lr=0.1, ess=1e6, **settings)
    gradients = [torch.full_like(p, 1e-3, requires_grad=False) for p in model.parameters()]
    peak = 0

    def look(*_: Any) -> None:
        nonlocal peak
        peak = max(peak, held(optimizer))

    handle = optimizer.register_step_pre_hook(look)
    local = settings.get("noise") == "per_rank"
    seconds = smallest(lambda: cycle(optimizer, gradients, samples, local), options.runs)
    handle.remove()
    count = sum(p.numel() for p in model.parameters())
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, one thread"
    return {"parameters": count, "samples": samples, "seconds": seconds, "bytes": peak / count, "where": where}


def worker(rank: int, world: int, meeting: str, options: argparse.Namespace) -> None:
    """One process of many: prints its measurements."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    for mode in MODES:
        model = model_of(options.shared_parameters, "cpu")
        if mode == "shards":
            fully_shard(model)
        elif world > 1:
            DistributedDataParallel(model)
        found = measured(model, options, noise="per_rank" if mode == "per_rank" else "shared")
        if rank == 0:
            print(json.dumps({"kind": "processes", "mode": mode, "world": world, **found}), flush=True)
    dist.destroy_process_group()


def together(world: int, options: argparse.Namespace) -> Iterator[report.Line]:
    with tempfile.TemporaryDirectory() as folder:
        rest = ["--runs", str(options.runs), "--shared-parameters", str(options.shared_parameters)]
        commands = [
            [sys.executable, __file__, "--worker", f"{rank},{world},{folder}/meeting", *rest] for rank in range(world)
        ]
        running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
        printed = [process.communicate()[0] for process in running]
        for line in printed[0].splitlines():
            yield json.loads(line)
    if any(process.returncode for process in running):
        raise SystemExit("a process failed")


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for count in options.parameters:
        yield {"kind": "parameters", **measured(model_of(count, options.device), options)}
    for samples in options.samples:
        yield {"kind": "samples", **measured(model_of(options.parameters[-1], options.device), options, samples)}
    for world in options.worlds:
        yield from together(world, options)


def figure(x: float) -> str:
    """Three digits at least."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def message(mode: str, world: int) -> float:
    """Bytes a parameter that each process sends for a step, by a ring: gradients, and products where samples differ."""
    ring = 2 * (world - 1) / world * 4
    return {"shared": ring, "per_rank": 2 * ring, "shards": 3 / 2 * ring}[mode]


def tables(lines: list[report.Line], options: argparse.Namespace) -> str:
    text = "\nOne process, one sample a step:\n\n" + single(lines, "parameters", "parameters")
    text += "\nOne process, several samples a step:\n\n" + single(lines, "samples", "samples")
    shared = [line for line in lines if line["kind"] == "processes"]
    if shared:
        text += f"\nSeveral processes, {shared[0]['parameters']:,} parameters; time and state of one process:\n\n"
        rows = [
            [
                MODES[line["mode"]],
                line["world"],
                figure(1e3 * line["seconds"]),
                figure(line["bytes"]),
                f"{message(line['mode'], line['world']):.0f}",
            ]
            for line in sorted(shared, key=lambda entry: (list(MODES).index(entry["mode"]), entry["world"]))
        ]
        columns = ["", "processes", "ms a cycle", "bytes held a parameter", "bytes sent a parameter"]
        text += report.table(columns, rows) + "\n" + paper(lines, options)
    return text


def single(lines: list[report.Line], kind: str, first: str) -> str:
    rows = [
        [
            line["where"],
            f"{line[first]:,}",
            figure(1e3 * line["seconds"]),
            figure(1e9 * line["seconds"] / line["parameters"]),
            figure(line["bytes"]),
        ]
        for line in lines
        if line["kind"] == kind
    ]
    return report.table(["", first, "ms a cycle", "ns a parameter", "bytes held a parameter"], rows)


def paper(lines: list[report.Line], options: argparse.Namespace) -> str:
    """A billion float32 parameters: bytes as counted above, time as measured, and the ring for messages."""
    largest = max((line for line in lines if line["kind"] == "parameters"), key=lambda line: line["parameters"])
    ns = options.cycle_ns or 1e9 * largest["seconds"] / largest["parameters"]
    source = "given" if options.cycle_ns else f"{largest['where']}, {largest['parameters']:,} parameters"
    rows = []
    for mode in MODES:
        kept = max(line["bytes"] for line in lines if line["kind"] == "processes" and line["mode"] == mode
                   and line["world"] == 1)  # fmt: skip
        for world in (1, 2, 4, 8, 16) if mode == "shards" else (8,):
            here = BILLION / world if mode == "shards" else BILLION
            gigabytes = [here * size / 1e9 for size in (4, 4, kept)]
            sent = BILLION * message(mode, world) / 1e9
            cells = [f"{size:.1f}" for size in (*gigabytes, sum(gigabytes))]
            times = figure(here * ns * 1e-6), figure(1e3 * sent / options.bandwidth)
            rows.append([MODES[mode], world, *cells, times[0], f"{sent:.1f}", times[1]])
    columns = ["", "processes", "weights, GB", "gradients, GB", "optimizer, GB", "together, GB", "optimizer, ms",
               "sent a step, GB", "message, ms"]  # fmt: skip
    text = "A billion parameters in float32, on paper, for each process, activations apart: "
    text += f"{figure(ns)} ns a parameter for a cycle ({source}), "
    text += f"{options.bandwidth:g} GB/s between processes (assumed).\n\n"
    return text + report.table(columns, rows)


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--worlds", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--shared-parameters", type=int, default=4_000_000, help="parameters of the many processes")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cycle-ns", type=float, help="nanoseconds a parameter of one cycle on a GPU")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="GB/s between processes, for the last table")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.worker:
        rank, world, meeting = options.worker.split(",")
        worker(int(rank), int(world), meeting, options)
        return
    lines = report.gather(options, runs)
    if not options.raw:
        facts = {"runs": options.runs, "cores": os.cpu_count()}
        text = report.header("What IVON costs as it grows", lines, **facts) + tables(lines, options)
        report.publish("distributed_cost", text, options.out)


if __name__ == "__main__":
    main()
