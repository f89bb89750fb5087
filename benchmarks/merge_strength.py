"""How much each task should count when networks are merged by curvature.

A perceptron with a hidden layer of 100 (text: 50) learns 400 examples by `po.fit`. Three copies are fine-tuned on three
parts of 400 other examples, 5 or 20 epochs each with the base's posterior as prior, and merged ("laplace": by AdamW
without a prior, then `po.laplace`). The parts have classes of their own, or are random. With weights of 1, `po.merge`
adds up what each task has learnt: exact for quadratic losses and trainings that have converged. With weights of 1/3 it
is the geometric mean of the three posteriors. NLL at the mean, on other examples.

The default of `po.merge`, one over the number of tasks, was chosen on digits and USPS with the seeds 10 and 11; the
table has other seeds, Fashion-MNIST and text were not looked at before.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Iterator

import numpy as np
import report
import torch
from adapt_baselines import problem
from torch import Tensor, nn

import posterity as po

SETS = ("digits", "USPS", "Fashion-MNIST", "text")
DEFAULT = "po.merge, its default"
WAYS = ("the base", "plain average", "task arithmetic, 1", "curvature, 1", "curvature, 2/3", "curvature, 1/3", DEFAULT,
        "Fisher average", "trained on all parts")  # fmt: skip
TASKS = 3


def parts_of(y: Tensor, kind: str, classes: int, seed: int) -> list[Tensor]:
    """Rows of each part."""
    if kind == "classes":
        return [torch.isin(y, own).nonzero()[:, 0] for own in torch.arange(classes).tensor_split(TASKS)]
    return list(torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).tensor_split(TASKS))


def tuned(base: po.Run, method: str, data: tuple[Tensor, Tensor], epochs: int, seed: int) -> po.Posterior:
    model = copy.deepcopy(base.model)
    how = {"epochs": epochs, "seed": seed, "progress": False}
    if method == "laplace":
        po.fit(model, data, method="adamw", prior=0.0, **how)
        return po.laplace(model, data, structure="diag", prior_precision=1.0)
    return po.fit(model, data, method=method, prior=base.posterior, **how).posterior


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for name, seed, method in itertools.product(options.sets, options.seeds, options.methods):
        p = problem(name, options, seed)
        (x, y), test = p.train, p.test
        torch.manual_seed(seed)
        way = {"laplace": "adamw"}.get(method, method)
        base = po.fit(p.network(p.classes), (x[:400], y[:400]), method=way, seed=seed, progress=False)
        start = base.posterior
        if method == "laplace":
            start = po.laplace(base.model, (x[:400], y[:400]), structure="diag", prior_precision=1.0)
        rest = x[400:], y[400:]
        for kind, epochs in itertools.product(("classes", "random"), (5, 20)):
            rows = parts_of(rest[1], kind, p.classes, seed)
            parts = {str(k): tuned(base, method, (rest[0][r], rest[1][r]), epochs, seed) for k, r in enumerate(rows)}
            found = {"the base": start.mean}
            found["plain average"] = po.merge(parts, method="linear").mean
            ones = dict.fromkeys(parts, 1.0)
            found["task arithmetic, 1"] = po.merge(parts, start, method="task_arithmetic", weights=ones).mean
            for label, alpha in (("1", 1.0), ("2/3", 2 / 3), ("1/3", 1 / 3)):
                found[f"curvature, {label}"] = po.merge(parts, start, weights=dict.fromkeys(parts, alpha)).mean
            found[DEFAULT] = po.merge(parts, start).mean
            found["Fisher average"] = po.merge(parts, method="fisher").mean
            found["trained on all parts"] = tuned(base, method, rest, epochs, seed).mean
            for label, mean in found.items():
                with torch.no_grad():
                    f = torch.func.functional_call(base.model, mean, (test[0],))
                yield {
                    "set": name, "seed": seed, "method": method, "parts": kind, "epochs": epochs, "way": label,
                    "nll": nn.functional.cross_entropy(f, test[1]).item(),
                    "accuracy": 100 * (f.argmax(1) == test[1]).double().mean().item(),
                }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("How much each merged task counts", lines, seeds=seeds)
    text += "\n" + (__doc__ or "").strip() + "\n\n"
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for line in lines:
        case = (line["set"], line["method"], line["parts"], str(line["epochs"]))
        found.setdefault(case, {}).setdefault(line["way"], 0.0)
        found[case][line["way"]] += line["nll"] / len(seeds)
    behind = {way: [f[way] - f["plain average"] for f in found.values()] for way in WAYS}
    text += "Of these " + str(len(found)) + " cases, behind the plain average by more than 0.001 nats: "
    text += "; ".join(
        f"{way} in {sum(gap > 0.001 for gap in behind[way])} (at most {max(behind[way]):+.3f}, mean "
        f"{np.mean(behind[way]):+.4f})"
        for way in ("curvature, 1", DEFAULT, "Fisher average")
    )
    text += ".\n\n"
    rows = [[*case, *(f"{values[way]:.3f}" for way in WAYS)] for case, values in found.items()]
    report.publish(
        "merge_strength", text + report.table(["data", "method", "parts", "epochs", *WAYS], rows), options.out
    )


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--sets", nargs="+", default=list(SETS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--methods", nargs="+", default=["variational", "ivon", "laplace"])
    arguments.add_argument("--n", type=int, default=800)
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
