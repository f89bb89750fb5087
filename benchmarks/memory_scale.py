"""A memory map of a million rows that never lie in memory together: time and memory beside the number of rows.

Rows stand in a file and are read batch by batch; a 20-64-2 network, a diagonal Laplace posterior. What grows with the
rows is the table itself (a row of numbers for each example).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report
import torch
from torch import Tensor
from torch.utils.data import Dataset

import networks
import posterity as po

FEATURES = 20


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a file on disk, read when asked for, many at a time."""

    def __init__(self, path: Path, rows: int) -> None:
        self.table = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, FEATURES + 1))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = torch.from_numpy(np.array(self.table[index]))
        return row[:FEATURES], row[FEATURES].long()

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, Tensor]]:
        rows = torch.from_numpy(self.table[index])
        return list(zip(rows[:, :FEATURES], rows[:, FEATURES].long(), strict=True))


def written(path: Path, rows: int) -> Rows:
    """A file of random rows with a label that depends on them; a twentieth of the labels is wrong."""
    table = np.memmap(path, dtype=np.float32, mode="w+", shape=(rows, FEATURES + 1))
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(FEATURES)
    for start in range(0, rows, 100_000):
        part = table[start : start + 100_000]
        part[:, :FEATURES] = rng.standard_normal((len(part), FEATURES))
        label = np.tanh(part[:, :FEATURES]) @ weights > 0
        part[:, FEATURES] = label ^ (rng.random(len(part)) < 0.05)
    table.flush()
    return Rows(path, rows)


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            data = written(Path(folder) / "rows.bin", rows)
            torch.manual_seed(0)
            model = networks.mlp((FEATURES, 64, 2))
            part = torch.utils.data.Subset(data, range(min(rows, 20_000)))
            po.fit(model, part, method="adamw", likelihood="categorical", epochs=2, batch_size=500)
            before = peak()
            start = time.perf_counter()
            posterior = po.laplace(
                model, data, likelihood="categorical", structure="diag", prior_precision=1.0, batch_size=5000
            )
            m = po.memory_map(model, posterior, data, batch_size=5000)
            yield {
                "rows": rows, "seconds": time.perf_counter() - start, "before": before, "peak": peak(),
                "table": m.columns.memory_usage(deep=True).sum() / 1e6, "file": rows * (FEATURES + 1) * 4 / 1e6,
            }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = [
        [
            f"{line['rows']:,}",
            f"{line['seconds']:.1f}",
            f"{1e6 * line['seconds'] / line['rows']:.0f}",
            f"{line['file']:.1f}",
            f"{line['table']:.0f}",
            f"{line['peak'] - line['before']:.0f}",
        ]
        for line in lines
    ]
    columns = ["rows", "seconds", "µs a row", "file, MB", "table, MB", "memory above the start, MB"]
    text = report.header("A memory map of a million rows", lines)
    report.publish("memory_scale", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
