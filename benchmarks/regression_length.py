"""Why R² of two regressions is lower in `Variational`: length of training, and smaller budgets.

python benchmarks/untuned.py --data DATA --prepare PACKED
python benchmarks/regression_length.py --packed PACKED --raw results.jsonl
python benchmarks/regression_length.py --collect results.jsonl --out docs/benchmarks
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import untuned
import workers
from report import header, parser, publish, table
from untuned_tasks import TASKS

ALONE, LONGER, OURS = "AdamW", "AdamW, twice as long", "Variational(AdamW)"
BUDGETS: dict[str, float | None] = {f"{OURS}, budget 0.003": 0.003, f"{OURS}, budget 0.01": 0.01, OURS: None}
NAMES = [name for name, task in TASKS.items() if task.kind == "amounts" and not task.chosen_on]
TEXT = """
The regressions of [the study without tuning](untuned.md), on a CPU, each beside AdamW with the same seed. Their
networks predict mean and variance. When AdamW trains for twice as many steps, R² still rises, and the NLL too: means
are not learnt yet, and variances are overfitted. Noise holds back both. Smaller budgets lose less R² and gain less NLL.
"""


def jobs() -> list[tuple[str, str, int]]:
    """All runs."""
    return [(name, method, seed) for seed in range(3) for name in NAMES for method in (ALONE, LONGER, *BUDGETS)]


def run(packed: Path, toy: int | None, name: str, method: str, seed: int) -> dict[str, Any]:
    """One training."""
    task = TASKS[name]
    how = OURS if method in BUDGETS else ALONE
    try:
        TASKS[name] = replace(task, steps=2 * task.steps) if method == LONGER else task
        return untuned.run(packed, toy, name, how, seed, BUDGETS.get(method)) | {"method": method}
    finally:
        TASKS[name] = task


def page(lines: list[dict[str, Any]]) -> str:
    """Differences to AdamW, paired by seed."""
    found = {(line["task"], line["method"], line["seed"]): line["scores"] for line in lines}
    rows = []
    for name in NAMES:
        for method in (LONGER, *BUDGETS):
            pairs = [(found[name, method, s], found[name, ALONE, s]) for s in range(3) if (name, method, s) in found]
            gain = [sum(a[k] - b[k] for a, b in pairs) / len(pairs) for k in (0, 1)]
            rows.append([name, method, f"{100 * gain[0]:+.2f}", f"{gain[1]:+.3f}", len(pairs)])
    heads = ["task", "method", "R² beside AdamW, points", "NLL beside AdamW", "seeds"]
    return f"{header('Length, noise and R²', lines, seeds='0, 1, 2')}{TEXT}\n{table(heads, rows)}"


def main() -> None:
    arguments = workers.options(parser(__doc__))
    arguments.add_argument("--packed", help="the packed data of untuned.py")
    options = arguments.parse_args()
    if options.collect:
        publish("regression_length", page(workers.results(options.collect)), options.out)
    else:
        workers.share(jobs(), functools.partial(run, Path(options.packed), options.toy), options)


if __name__ == "__main__":
    main()
