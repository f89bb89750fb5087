"""Adapting a network to corrected, added and removed data, beside what anybody would try first.

A network is trained by `po.fit` (--method, at its defaults); then its data change. Rows: nothing; `po.adapt` with the
old data; a plain warm start (AdamW at its defaults, from the old weights, on the corrected data) for the same processor
time and for a quarter of it; `po.adapt` without the old data, from a memory of one example in ten; replay of that
memory with the new data; retraining from new weights, and another retraining. KL is from the predictions of retraining,
on test data. Time is processor time, in per cent of retraining.

The schedule of `po.adapt` was chosen on these sets with the seeds 10 and 11; these are other seeds and splits.
Retraining is `po.fit` at its defaults, which cross-validates the length of training; that is a part of its time.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import datasets
import numpy as np
import report
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import posterity as po
from posterity.adaptation import select
from posterity.adaptation.heads import find_head, grown

Data = tuple[Tensor, Tensor]
SHARE = 0.08
FAR = 3.0  # standard deviations by which one amount is off
DETAILS = "\n### All rows\n"


@dataclass(frozen=True)
class Problem:
    """Training and test data, and a network for them."""

    train: Data
    test: Data
    classes: int
    network: Callable[[int], nn.Module]


def mlp(columns: int, hidden: int = 100) -> Callable[[int], nn.Module]:
    return lambda k: nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, k))


def cut(x: Tensor, y: Tensor, n: int, seed: int, test: int = 2000) -> tuple[Data, Data]:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1000 + seed))
    x, y = x[order], y[order]
    return (x[:n], y[:n]), (x[n : n + test], y[n : n + test])


def problem(name: str, options: argparse.Namespace, seed: int) -> Problem:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        parts = cut(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y), min(options.n, 1200), seed)
        return Problem(*parts, 10, mlp(64))
    root = datasets.folder(options.data)
    if name == "USPS":
        raw = np.load(root / "usps" / "usps.npz")
        x = torch.tensor(np.concatenate([raw[k] for k in raw if k.lower().startswith("x")]).astype("f4") / 2000)
        y = torch.tensor(np.concatenate([raw[k] for k in raw if k.lower().startswith("y")])).long()
        return Problem(*cut(x.reshape(len(y), -1), y, options.n, seed), 10, mlp(256))
    if name == "Fashion-MNIST":
        x, y = datasets.digits_like(root, "FashionMNIST", "train")
        return Problem(*cut(x[:20000].flatten(1), y[:20000], options.n, seed), 10, mlp(784))
    if name == "table":
        raw = datasets.tabular(root, "adult_a7a")
        keys = sorted(raw)
        x = torch.tensor(np.concatenate([raw[k] for k in keys if k.lower().startswith("x")]).astype("f4"))
        y = torch.tensor(np.concatenate([raw[k] for k in keys if k.lower().startswith("y")]).astype(int))
        return Problem(*cut(x, (y > 0).long(), options.n, seed), 2, mlp(x.shape[1], 50))
    records = datasets.text(root, "trec")
    words: dict[str, int] = {}
    rows = [[words.setdefault(w, len(words) + 1) for w in r["text"].lower().split()[:20]] for r in records]
    x = torch.zeros(len(rows), len(words) + 1)
    for i, row in enumerate(rows):
        x[i, row] = 1.0 / len(row) ** 0.5
    frequent = x.gt(0).sum(0).topk(800).indices
    names = sorted({str(r["label"]) for r in records})
    y = torch.tensor([names.index(str(r["label"])) for r in records])
    return Problem(*cut(x[:, frequent], y, options.n, seed), len(names), mlp(800, 50))


def noisy(y: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Targets of which 8 % are wrong (amounts are those of other rows), and which these are."""
    g = torch.Generator().manual_seed(seed)
    wrong = torch.randperm(len(y), generator=g)[: round(SHARE * len(y))]
    y = y.clone()
    if y.is_floating_point():
        y[wrong] = y[torch.randperm(len(y), generator=g)[: len(wrong)]]
    else:
        y[wrong] = (y[wrong] + torch.randint(1, classes, (len(wrong),), generator=g)) % classes
    return y, wrong


def change(p: Problem, kind: str, seed: int) -> tuple[Data, Data, dict, int, int]:
    """Data before, data after, the question to `po.adapt`, and the number of classes before and after."""
    (x, y), k = p.train, p.classes
    n, last = len(y), p.classes - 1
    if kind == "add 10 %":
        first = n - n // 11
        return (x[:first], y[:first]), (x, y), {"add": (x[first:], y[first:])}, k, k
    if kind in ("remove 8 %", "relabel 8 %"):
        given, wrong = noisy(y, k, seed)
        if kind == "relabel 8 %":
            return (x, given), (x, y), {"relabel": {int(i): y[i] for i in wrong}}, k, k
        stay = torch.ones(n, dtype=torch.bool).index_fill(0, wrong, False)
        return (x, given), (x[stay], y[stay]), {"remove": wrong.tolist()}, k, k
    if kind == "relabel one":
        given = y.clone()
        given[0] = y[0] + FAR if y.is_floating_point() else (y[0] + 1) % k
        return (x, given), (x, y), {"relabel": {0: y[0]}}, k, k
    old = y != last
    if kind == "new class":
        return (x[old], y[old]), (x, y), {"add": (x[~old], y[~old]), "classes": k}, k - 1, k
    return (x, y), (x[old], y[old]), {"remove": (~old).nonzero()[:, 0].tolist()}, k, k


def started(p: Problem, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return p.network(classes)


@dataclass(frozen=True)
class Trainer:
    """Trainings by `po.fit`, each done once, with their processor seconds."""

    p: Problem
    method: str
    epochs: int | None
    done: dict[tuple[bytes, int, int], tuple[po.Run, float]] = field(default_factory=dict)

    def __call__(self, data: Data, classes: int, seed: int) -> tuple[po.Run, float]:
        key = data[1].numpy().tobytes(), classes, seed
        if key not in self.done:
            start = time.process_time()
            model = started(self.p, classes, seed)
            asked = {"likelihood": "gaussian"} if data[1].is_floating_point() else {}
            run = po.fit(model, data, method=self.method, epochs=self.epochs, seed=seed, progress=False, **asked)
            self.done[key] = run, time.process_time() - start
        return self.done[key]


def warm(model: nn.Module, data: Data, seconds: float, seed: int, extra: Data | None = None) -> nn.Module:
    """AdamW at its defaults for so many processor seconds; `extra` joins every batch (replay)."""
    model = copy.deepcopy(model)
    adam, g = torch.optim.AdamW(model.parameters()), torch.Generator().manual_seed(seed)
    start = time.process_time()
    while True:
        for rows in torch.randperm(len(data[1]), generator=g).split(64):
            if time.process_time() - start >= seconds:
                return model
            x, y = data[0][rows], data[1][rows]
            if extra is not None:
                more = torch.randint(len(extra[1]), (64,), generator=g)
                x, y = torch.cat((x, extra[0][more])), torch.cat((y, extra[1][more]))
            adam.zero_grad()
            loss(model(x), y).backward()
            adam.step()


def loss(f: Tensor, y: Tensor) -> Tensor:
    """The mean loss: the squared error of amounts, the log-loss of classes."""
    return F.mse_loss(f, y) if y.is_floating_point() else F.cross_entropy(f, y)


@torch.no_grad()
def figures(model: nn.Module, reference: nn.Module, test: Data) -> dict[str, float]:
    f, y = model(test[0]), test[1]
    if y.is_floating_point():
        return {"nll": loss(f, y).item(), "kl": F.mse_loss(f, reference(test[0])).item()}
    p, q = reference(test[0]).double().log_softmax(1), f.double().log_softmax(1)
    return {
        "accuracy": 100 * (q.argmax(1) == y).double().mean().item(),
        "nll": F.nll_loss(q, y).item(),
        "kl": (p.exp() * (p - q.clamp_min(-30))).sum(1).mean().item(),
    }


def one(trained: Trainer, kind: str, seed: int) -> Iterator[dict]:
    p = trained.p
    before, after, question, k_old, k_new = change(p, kind, seed)
    run, _ = trained(before, k_old, seed)
    posterior = replace(run.posterior, memory=None)
    head = find_head(run.model, before[0])
    wide = run.model if k_old == k_new else grown(run.model, head, k_new)
    retrained, full = trained(after, k_new, seed + 100)
    again, _ = trained(after, k_new, seed + 200)
    found: dict[str, tuple[nn.Module, float]] = {"nothing": (wide, 0.0)}
    start = time.process_time()
    result = po.adapt(run.model, posterior, data=before, seed=seed, **question)
    taken = time.process_time() - start
    found["po.adapt"] = result.model, taken
    found["warm start, same time"] = warm(wide, after, taken, seed), taken
    found["warm start, a quarter"] = warm(wide, after, taken / 4, seed), taken / 4
    if "add" in question:
        memory = select(run.model, posterior, before, len(before[1]) // 10, seed=seed)
        start = time.process_time()
        result = po.adapt(run.model, replace(posterior, memory=memory), seed=seed, **question)
        taken = time.process_time() - start
        found["without old data"] = result.model, taken
        kept = (memory.inputs, memory.targets)
        found["replay, same memory and time"] = warm(wide, question["add"], taken, seed, kept), taken
    found["retraining"] = retrained.model, full
    found["another retraining"] = again.model, full
    test = p.test if kind != "lost class" else tuple(t[p.test[1] != p.classes - 1] for t in p.test)
    for way, (model, seconds) in found.items():
        yield {"way": way, "time": 100 * seconds / full, **figures(model.eval(), retrained.model, test)}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    tiny = cut(torch.randn(80, 4), torch.arange(80) % 3, 60, 0)
    for _ in one(Trainer(Problem(*tiny, 3, mlp(4, 5)), options.method, 1), "add 10 %", 0):
        pass  # what is imported and compiled on first use is not part of any time
    for seed in options.seeds:
        for name in options.sets:
            p = problem(name, options, seed)
            trained = Trainer(p, options.method, options.epochs)
            for kind in options.changes:
                if p.classes == 2 and kind in ("new class", "lost class"):
                    continue
                for line in one(trained, kind, seed):
                    yield {"set": name, "change": kind, "seed": seed, **line}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Adapting beside a warm start", lines, method=options.method, seeds=seeds)
    text += "\n" + (__doc__ or "").strip() + "\n" + DETAILS
    distances: list[list[list[float]]] = []
    summary, shown = [], (("accuracy", 1), ("nll", 3), ("kl", 4))
    for kind in dict.fromkeys(line["change"] for line in lines):
        text += f"\n#### {kind}\n"
        for name in dict.fromkeys(line["set"] for line in lines if line["change"] == kind):
            mine = [line for line in lines if (line["set"], line["change"]) == (name, kind)]
            ways = list(dict.fromkeys(line["way"] for line in mine))

            def column(way: str, key: str, rows: list[report.Line] = mine) -> list[float]:
                return [line[key] for line in rows if line["way"] == way]

            rows = [
                [way, *(report.spread(column(way, key), d) for key, d in shown), f"{np.mean(column(way, 'time')):.0f}"]
                for way in ways
            ]
            text += f"\n{name}\n\n" + report.table(["", "accuracy", "NLL", "KL", "time, %"], rows)
            gap = beside(column, "po.adapt", "warm start, same time")
            compared = ("po.adapt", "warm start, same time", "another retraining")
            kls = (report.spread(column(way, "kl"), 3) for way in compared)
            distances.append([column(way, "kl") for way in compared])
            cost = f"{np.mean(column('po.adapt', 'time')):.0f}"
            without = beside(column, "without old data", "replay, same memory and time")
            summary.append([kind, name, gap, *kls, cost, without])
    short = (
        "\n### po.adapt in short\n\nNLL less that of the warm start of the same time; without the old data, less that "
    )
    short += "of replay with the same memory. Below zero is better.\n\n"
    columns = ["change", "data", "NLL", "KL", "KL of the warm start", "KL of another retraining", "time, %"]
    columns.append("NLL without old data")
    short += report.table(columns, summary) + closeness(distances)
    report.publish("adapt_baselines", text.replace(DETAILS, short + DETAILS), options.out)


def closeness(distances: list[list[list[float]]]) -> str:
    """In how many cases the predictions are as close to retraining as those of a warm start, and of another one."""
    means = [[np.mean(values) for values in case] for case in distances]
    spreads = [np.std(case[2], ddof=1) if len(case[2]) > 1 else 0.0 for case in distances]
    ours, theirs = (sum(m[k] <= m[2] + s for m, s in zip(means, spreads)) for k in (0, 1))
    ahead = sum(m[0] < m[1] for m in means)
    return (
        f"\nOf {len(means)} cases `po.adapt` is closer to retraining than the warm start of the same time in {ahead}. "
        f"It is within one standard deviation of another retraining in {ours}, the warm start in {theirs}. "
        "[How close to retraining](adapt_closeness.md) has what was tried to come closer.\n"
    )


def beside(column: Callable[[str, str], list[float]], mine: str, other: str) -> str:
    """The mean difference of two ways in NLL, and its spread over seeds; nothing where they were not run."""
    gaps = [a - b for a, b in zip(column(mine, "nll"), column(other, "nll"))]
    return report.spread(gaps, 3) if gaps else ""


def main() -> None:
    arguments = report.parser(__doc__)
    sets = ["digits", "USPS", "Fashion-MNIST", "table", "text"]
    changes = ["relabel one", "relabel 8 %", "remove 8 %", "add 10 %", "new class", "lost class"]
    arguments.add_argument("--sets", nargs="+", default=sets, choices=sets)
    arguments.add_argument("--changes", nargs="+", default=changes, choices=changes)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--method", default="variational")
    arguments.add_argument("--epochs", type=int, help="of training; by default those of po.fit")
    arguments.add_argument("--n", type=int, default=800, help="training examples (of digits at most 1200)")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
