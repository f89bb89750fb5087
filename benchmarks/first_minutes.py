"""The first minutes with the command line: start-up, a small and a large table, and what the loop of `fit` costs.

Each command is a process of its own, started several times; the fastest is shown, with its processor time. Processor
time is what the wall clock would show on an idle machine with one core. Modules are compiled before, as those of an
installed wheel are.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pandas as pd
import report
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_wine
from torch import nn

import posterity as po
from posterity.optim import IVON

EPOCHS, ROWS, BATCH = 40, 640, 64
LOADED = "import sys, posterity.runs.fitting as f; print('torch._dynamo' in sys.modules)"


def installed() -> dict[str, str]:
    """An environment in which Python keeps compiled modules, as those of an installed wheel are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def timed(words: list[str], folder: str | Path, repeats: int) -> report.Line:
    """Seconds of the wall clock and of processors of the fastest of several runs of a command."""
    found = []
    for _ in range(repeats):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=installed())
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append((time.perf_counter() - began, cpu))
    return {"wall": min(wall for wall, _ in found), "cpu": min(cpu for _, cpu in found)}


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def _bare(x: torch.Tensor, y: torch.Tensor, method: str) -> None:
    """The loop that a user would write by hand."""
    model = _network()
    ivon = IVON(model.parameters(), lr=0.1, ess=ROWS) if method == "ivon" else None
    optimizer = ivon or torch.optim.AdamW(model.parameters())
    for _ in range(EPOCHS):
        for rows in torch.randperm(ROWS).split(BATCH):
            if ivon is None:
                F.cross_entropy(model(x[rows]), y[rows]).backward()
            else:
                with ivon.sampled_params(train=True):
                    F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()


def _loop(method: str, repeats: int) -> report.Line:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, 13, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)

    def ours() -> None:
        po.fit(_network(), (x, y), method=method, epochs=EPOCHS, progress=False)

    def seconds(run: Callable[[], None]) -> float:
        began = time.process_time()
        run()
        return time.process_time() - began

    ways = (lambda: _bare(x, y, method), ours)
    for way in ways:
        way()
    times = [[seconds(way) for way in ways] for _ in range(3 * repeats)]
    bare, fitted = (min(column) for column in zip(*times))
    steps = EPOCHS * ROWS // BATCH
    return {"what": f"loop, {method}", "bare": 1e3 * bare / steps, "ours": 1e3 * fitted / steps}


def lines(options: argparse.Namespace) -> Iterator[report.Line]:
    python, repeats = sys.executable, options.repeats
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        for name, load in (("wine", load_wine), ("breast cancer", load_breast_cancer)):
            load(as_frame=True).frame.to_csv(there / f"{name.split()[0]}.csv", index=False)
        tables = [
            ("wine, 142 rows to learn from", "wine.csv", "target"),
            ("breast cancer, 455", "breast.csv", "target"),
        ]
        if options.data or os.environ.get("POSTERITY_DATA"):
            adult = pd.read_csv(datasets.folder(options.data) / "tabular" / "adult.csv.gz").drop(columns="split")
            adult.to_csv(there / "adult.csv", index=False)
            tables.append(("Adult, 39 074", "adult.csv", "income"))
        yield {"what": "import torch"} | timed([python, "-c", "import torch"], folder, repeats)
        yield {"what": "import posterity.runs.fitting"} | timed([python, "-c", LOADED], folder, repeats)
        for name, file, target in tables:
            words = [python, "-m", "posterity", "fit", file, "--target", target, "--out", "run", "--overwrite"]
            count = repeats if "39" not in name else 1
            yield {"what": f"posterity fit, {name}", "load": os.getloadavg()[0]} | timed(words, folder, count)
    for method in ("adamw", "ivon"):
        yield _loop(method, repeats)


def main() -> None:
    options = report.parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    found = report.gather(given, lines)
    if given.raw:
        return
    started = [line for line in found if "wall" in line]
    loops = [line for line in found if "bare" in line]
    torch_alone = next(line for line in started if line["what"] == "import torch")
    rows = [
        [line["what"], f"{line['wall']:.1f}", f"{line['cpu']:.1f}", f"{line['cpu'] - torch_alone['cpu']:+.1f}"]
        for line in started
    ]
    load = max(line.get("load", 0.0) for line in started)
    head = report.header("The first minutes", found, cores=os.cpu_count(), load_average=f"up to {load:.0f}")
    loop_rows = [
        [line["what"], f"{line['bare']:.2f}", f"{line['ours']:.2f}", f"{line['ours'] / line['bare']:.2f}"]
        for line in loops
    ]
    text = "\n".join(
        [
            head,
            (__doc__ or "").split("\n\n", 1)[1],
            report.table(["command", "seconds", "seconds of the processor", "above `import torch`"], rows),
            "Milliseconds a step of a perceptron of three layers, processor time:\n",
            report.table(["", "bare loop", "`po.fit`", "ratio"], loop_rows),
        ]
    )
    report.publish("first_minutes", text, given.out)


if __name__ == "__main__":
    main()
