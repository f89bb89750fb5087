"""Tables of the study without tuning, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from untuned_tasks import TASKS

Line = dict[str, Any]
BASELINE, OURS = "AdamW", "Variational(AdamW)"
SCALED, WATCHING = "AdamW + temperature", "Variational(AdamW), watching"
CAUTION = """
These tasks chose no constant of `Variational`. Those that did have [a page of their own](untuned_chosen.md).
Eleven tasks were set apart to be reported. The first run on them showed losses of 3.5 and 1.2 times AdamW's on two
with batch normalisation (USPS, Fashion-MNIST). The rule for batch normalisation was then made on these two, on digits
and on ResNet-18, and the two moved to the other page. The budget that follows what examples teach themselves was
chosen on the tasks of that page and 33 further ones ([How much noise is worth](noise_budgets.md)), with seed 100.
Seven tasks joined this page after that choice. Perceptrons ran on a CPU, other networks on a GPU. The study is older
than the rules that lower the budget [where gradients are too large](doubt.md), where the perceptrons are repeated, and
[where networks are far from fitted](unseen.md), where six others are.
"""
HELD_OUT = """
400 training rows are set aside (a tenth of smaller sets, the last 3 % of a text). AdamW is scaled by a temperature on
them. `Variational.watch` lets them set its budget and the temperature of its outputs. Plain AdamW trains on all rows.
The rule of `watch` was chosen on MiniLM and on tasks of the other page, with seed 100.
"""
CHOSEN = """
The constants of `Variational` were chosen on these tasks with seed 100, before and after this table was made. Other
tasks are reported in [the study without tuning](untuned.md).
"""
BESIDE = """
SGD has lr 0.05, momentum 0.9, Nesterov and weight decay 5e-4; Muon has lr 0.02 on hidden matrices, beside AdamW for the
rest. Tasks, lengths and seeds are those of [the study without tuning](untuned.md). Learning rates are compared on
seed 0, and the best of three is chosen by the test loss, in AdamW's favour.
"""


def tables(lines: Sequence[Line], table: Callable[..., str]) -> str:
    """The main tables with their summaries, and what was shown beside them."""
    found = {(line["task"], line["method"], line["seed"]): line for line in lines}
    names = [name for name, task in TASKS.items() if not task.chosen_on]
    parts = [CAUTION, f"### Not watching\n\n{compared(found, names, BASELINE, OURS, table)}", HELD_OUT]
    for base in (SCALED, BASELINE):
        parts.append(f"### Watching, beside {base}\n\n{compared(found, names, base, WATCHING, table)}")
    parts.append("### Beside it\n\n" + table(["task", "method", "acc / NLL / ECE", "seeds"], _others(found)))
    return "\n".join(parts)


def tables_chosen(lines: Sequence[Line], table: Callable[..., str]) -> str:
    """The tasks that the constants were chosen on."""
    found = {(line["task"], line["method"], line["seed"]): line for line in lines}
    names = [name for name, task in TASKS.items() if task.chosen_on]
    return f"{CHOSEN}\n{compared(found, names, BASELINE, OURS, table)}"


def tables_beside(lines: Sequence[Line], table: Callable[..., str]) -> str:
    """Other bases in `Variational`, each beside itself alone, and AdamW at three learning rates."""
    found = {(line["task"], line["method"], line["seed"]): line for line in lines}
    parts = [BESIDE]
    for base in ("SGD", "Muon"):
        parts.append(f"### {base}\n\n{compared(found, list(TASKS), base, f'Variational({base})', table)}")
    rows, ratios = [], []
    rates = ("AdamW, lr 3e-4", BASELINE, "AdamW, lr 3e-3")
    for name in TASKS:
        losses = [found[name, method, 0]["scores"][1] for method in (*rates, OURS) if (name, method, 0) in found]
        if len(losses) == 4:
            ratios.append(losses[3] / min(losses[:3]))
            rows.append([name, *(f"{loss:.3f}" for loss in losses), f"{ratios[-1]:.3f}"])
    heads = ["task", "AdamW, lr 3e-4", "AdamW, lr 1e-3", "AdamW, lr 3e-3", "Variational(AdamW), lr 1e-3", "to the best"]
    mean = math.exp(statistics.mean(map(math.log, ratios))) if ratios else math.nan
    lower = f"Geometric mean of the last column {mean:.3f}; below 1 on {sum(r < 1 for r in ratios)} of {len(ratios)}."
    return "\n".join([*parts, "### NLL of AdamW at other learning rates\n", table(heads, rows), lower, ""])


def compared(
    found: dict[tuple[str, str, int], Line], names: Sequence[str], baseline: str, method: str, table: Callable[..., str]
) -> str:
    """Two methods side by side, paired by seed, and a sentence that sums it up."""
    rows, ratios, drops, errors, lower_than_chance = [], [], [], [], []
    for name in names:
        seeds = [s for s in range(3) if (name, baseline, s) in found and (name, method, s) in found]
        if not seeds:
            continue
        base = [found[name, baseline, s]["scores"] for s in seeds]
        ours = [found[name, method, s]["scores"] for s in seeds]
        at_mean = [found[name, method, s]["mean"] for s in seeds]
        logs = [math.log(o[1] / b[1]) for o, b in zip(ours, base, strict=True) if min(o[1], b[1]) > 0]
        if logs:  # densities of amounts can be above one
            ratios.append(math.exp(statistics.mean(logs)))
        changes = [o[0] - b[0] for o, b in zip(ours, base, strict=True)]
        drops.append(statistics.mean(changes))
        error = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else 0.0
        if drops[-1] < -max(0.003, 2 * error):
            lower_than_chance.append(f"{name} ({100 * drops[-1]:.2f})")
        errors.append(statistics.mean(o[2] - b[2] for o, b in zip(ours, base, strict=True)))
        heat = statistics.mean(found[name, method, s]["temperature"] for s in seeds)
        shown = f"{ratios[-1]:.3f}" if logs else ""
        rows.append([name, _three(base), _three(ours), _three(at_mean), shown, f"{heat:.3f}", len(seeds)])
    if not rows:
        return ""
    heads = ["task", f"{baseline} acc / NLL / ECE", f"{method}, sampled", "its mean alone", "NLL ratio", "T", "seeds"]
    mean, lower = math.exp(statistics.mean(map(math.log, ratios))), sum(e < 0 for e in errors)
    return (
        f"{table(heads, rows)}\n"
        f"Geometric mean of the NLL ratios {mean:.3f}, largest {max(ratios):.3f}; ECE lower on {lower} of "
        f"{len(errors)}, largest increase {max(errors):+.3f}; largest loss of accuracy "
        f"{100 * max(0.0, -min(drops)):.1f} points. Lower by more than 0.3 points and two standard errors of the "
        f"paired differences: {'; '.join(lower_than_chance) or 'none'}.\n"
    )


def _others(found: dict[tuple[str, str, int], Line]) -> list[list[object]]:
    methods = dict.fromkeys(method for _, method, _ in found if method not in (BASELINE, OURS, WATCHING))
    rows: list[list[object]] = []
    for method in methods:
        for name in TASKS:
            scores = [line["scores"] for (t, m, _), line in found.items() if t == name and m == method]
            if scores:
                rows.append([name, method, _three(scores), len(scores)])
    return rows


def _three(scores: Sequence[Sequence[float]]) -> str:
    means = [statistics.mean(column) for column in zip(*scores, strict=True)]
    spreads = [statistics.stdev(column) if len(scores) > 1 else 0.0 for column in zip(*scores, strict=True)]
    return " / ".join(f"{m:.3f}±{s:.3f}" for m, s in zip(means, spreads, strict=True))
