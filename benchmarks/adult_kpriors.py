"""Adult (a7a), logistic regression: how near adaptation comes to retraining, against the memory it is given.

Data arrive with a shift, sorted by age: nine tenths of the examples are old, the oldest people come last. Two changes:
the last tenth is added; the regulariser goes from 50 to 5. Distances are ‖w − w_retrained‖ relative to doing nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import report
import torch
from torch import Tensor, nn

import posterity as po
from posterity.adaptation import adapt, select
from posterity.adaptation.solve.newton import Problem, minimise
from posterity.posterior import Memory, Posterior

SHARES = (1.0, 0.2, 0.1, 0.05, 0.02)
CHANGES = ("add", "regulariser")
OLD, NEW = 50.0, 5.0
Data = tuple[Tensor, Tensor]


def load(root: Path) -> tuple[Data, Data]:
    """Training data sorted by age (the first five columns are its quintiles), and test data."""
    raw = datasets.tabular(root, "adult_a7a")
    x, y, x_test, y_test = (
        torch.tensor(raw[k], dtype=torch.float64) for k in ("X_train", "y_train", "X_test", "y_test")
    )
    order = torch.argsort(x[:, :5].argmax(1), stable=True)
    return (x[order], y[order].unsqueeze(1)), (x_test, y_test.unsqueeze(1))


def trained(data: Data, precision: float, structure: str = "full") -> tuple[nn.Linear, Posterior]:
    """A logistic regression at its optimum, and its Laplace posterior."""
    x, y = data
    model = nn.Linear(x.shape[1], 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(solved(x, y, torch.ones(len(x)).double(), precision))
    return model, po.laplace(model, data, likelihood="bernoulli", structure=structure, prior_precision=precision)


def solved(x: Tensor, y: Tensor, weights: Tensor, precision: float) -> Tensor:
    """The optimum over weighted rows."""
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    problem = Problem(
        po.likelihoods.likelihood("bernoulli"), x, y, weights, precision * eye, torch.zeros(len(eye)).double()
    )
    return minimise(problem, torch.zeros(len(eye)).double()).theta.unsqueeze(0)


def replayed(memory: Memory, new: Data | None, precision: float) -> Tensor:
    """The optimum over the memory with its labels, weighted to stand for all, and the new data."""
    x, y, w = memory.inputs, memory.targets, memory.weights.double()
    if new is not None:
        x, y, w = torch.cat((x, new[0])), torch.cat((y, new[1])), torch.cat((w, torch.ones(len(new[1])).double()))
    return solved(x, y, w, precision)


METHODS: dict[str, tuple[str, str]] = {  # structure of the posterior, rule of the memory
    "K-prior": ("full", "random"),
    "K-prior, top curvature": ("full", "curvature"),
    "K-prior, leverage": ("full", "leverage"),
    "K-prior, diagonal remainder": ("diag", "random"),
    "replay": ("full", "random"),
    "EWC, full": ("full", ""),
    "EWC, diagonal": ("diag", ""),
}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    (x, y), test = load(datasets.folder(options.data))
    cut = len(x) * 9 // 10
    settings = {"add": ((x[:cut], y[:cut]), (x[cut:], y[cut:]), OLD), "regulariser": ((x, y), None, NEW)}
    for change, (old, new, precision) in settings.items():
        wanted = solved(x, y, torch.ones(len(x)).double(), precision)
        before = {s: trained(old, OLD, s) for s in ("full", "diag")}
        away = (before["full"][0].weight - wanted).norm().item()
        yield {"change": change, "method": "no adaptation", "share": 0.0, "distance": 1.0} | scored(
            before["full"][0].weight, test
        )
        yield {"change": change, "method": "retrained", "share": 0.0, "distance": 0.0} | scored(wanted, test)
        for method, (structure, by) in METHODS.items():
            model, posterior = before[structure]
            for share in SHARES if by else (0.0,):
                for seed in range(options.seeds if by == "random" and share < 1 else 1):
                    start = time.perf_counter()
                    memory = select(model, posterior, old, round(share * len(old[1])), by=by, seed=seed) if by else None
                    if method == "replay":
                        weight = replayed(memory, new, precision)
                    else:
                        asked = {"memory": memory} if by else {"data": old, "method": "ewc"}
                        result = adapt(model, posterior, add=new, prior_precision=None if new else precision, **asked)
                        weight = result.model.weight
                    seconds = time.perf_counter() - start
                    distance = (weight - wanted).norm().item() / away
                    line = {
                        "change": change,
                        "method": method,
                        "share": share,
                        "distance": distance,
                        "seconds": seconds,
                    }
                    yield line | scored(weight, test)


def scored(weight: Tensor, test: Data) -> dict[str, float]:
    return {"accuracy": 100 * ((test[0] @ weight.T > 0) == (test[1] > 0.5)).double().mean().item()}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    text = report.header(
        "Adult (a7a): adaptation against retraining", lines, seeds=options.seeds, regulariser="50, then 5"
    )
    for change, title in zip(
        CHANGES, ("A tenth of the data is added", "The regulariser goes from 50 to 5"), strict=True
    ):
        mine = [line for line in lines if line["change"] == change]
        text += f"\n### {title}\n\nDistance to retraining / distance without adaptation (test accuracy)\n\n"
        rows = []
        for method in ("no adaptation", *METHODS, "retrained"):
            found = {
                s: [line for line in mine if line["method"] == method and line["share"] == s] for s in (*SHARES, 0.0)
            }
            rows.append([method, *(cell(found[s]) for s in (*SHARES, 0.0))])
        text += report.table(["method", *(f"{s:.0%} memory" for s in SHARES), "no memory"], rows)
    report.publish("adult_kpriors", text, options.out)


def cell(lines: list[report.Line]) -> str:
    if not lines:
        return ""
    mean = {key: sum(line[key] for line in lines) / len(lines) for key in ("distance", "accuracy")}
    return f"{mean['distance']:.3f} ({mean['accuracy']:.2f})"


if __name__ == "__main__":
    main()
