"""Estimated what-ifs against retraining, and whether their warnings can be believed.

Every model is brought to the optimum of its loss plus prior. Then groups of 1, 10 and 100 training examples (random
ones, those with the largest loss, those of one class) are removed or get another label, and the model is brought to its
optimum again. Optima are found by full-batch L-BFGS in double precision until the gradient vanishes, from the old
optimum: there is no noise from another start, and a group takes a fraction of a second. The estimate is
`MemoryMap.what_if(...).on(test)` from a posterior; compared is the change of the mean test loss. 8 % of the labels are
wrong, so that there are suspects.

An estimate is flagged where the refining steps leave more than 1e-5 of the gradient, or where outputs bend and the mean
change is below 1.5 standard errors. These limits were chosen on the problems of the second table.
The posterior of `po.fit` ("variational") stands at a mean of its own, next to the optimum whose retraining it is
compared with.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import report
import torch
from scipy.optimize import minimize
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import posterity as po
from posterity.likelihoods import Likelihood, likelihood
from posterity.memory import MemoryMap
from posterity.trees import from_vector, to_vector, trainable

Data = tuple[Tensor, Tensor]
Wish = tuple[list[int], dict[int, float]]  # ids to remove, new labels by id
SIZES = (1, 10, 100)
WRONG = 0.08
POSTERIORS = ("full", "kron", "diag", "variational")


@dataclass(frozen=True)
class Problem:
    """Data, a network, and what its outputs mean."""

    data: Callable[[argparse.Namespace], Data]
    hidden: int  # 0 for a linear model
    law: str = "categorical"
    delta: float = 1.0


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-9)


def components(x: Tensor, k: int = 20) -> Tensor:
    """The first principal components, the first of them of variance 1."""
    x = x.double() - x.double().mean(0)
    _, s, v = torch.linalg.svd(x[:4000], full_matrices=False)
    return x @ v[:k].T / (s[0] / min(len(x), 4000) ** 0.5)


def bundled(loader: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[[argparse.Namespace], Data]:
    def load(_: argparse.Namespace) -> Data:
        x, y = loader(return_X_y=True)
        real = y.dtype.kind == "f"
        return standardised(torch.tensor(x)), torch.tensor((y - y.mean()) / y.std() if real else y)

    return load


def regression(name: str) -> Callable[[argparse.Namespace], Data]:
    def load(options: argparse.Namespace) -> Data:
        raw = datasets.uci_regression(datasets.folder(options.data), name)
        x, y = (torch.tensor(raw[k]).double()[:3000] for k in ("X", "y"))
        return standardised(x), standardised(y)

    return load


def pictures(name: str) -> Callable[[argparse.Namespace], Data]:
    def load(options: argparse.Namespace) -> Data:
        root = datasets.folder(options.data)
        if name == "usps":
            raw = np.load(root / "usps" / "usps.npz")
            x, y = (
                torch.tensor(np.concatenate([raw[k] for k in raw if k.lower().startswith(c)]).astype("f8"))
                for c in "xy"
            )
            return components(x.reshape(len(y), -1)), y.long()
        x, y = datasets.digits_like(root, name, "train")
        return components(x[:6000].flatten(1)), y[:6000]

    return load


def adult(options: argparse.Namespace) -> Data:
    raw = datasets.tabular(datasets.folder(options.data), "adult_a7a")
    x, y = (torch.tensor(np.concatenate([raw[k] for k in sorted(raw) if k.lower().startswith(c)])) for c in "xy")
    return x[:6000].double(), (y[:6000] > 0).long()


def trec(options: argparse.Namespace) -> Data:
    records = datasets.text(datasets.folder(options.data), "trec")
    words: dict[str, int] = {}
    rows = [[words.setdefault(w, len(words)) for w in r["text"].lower().split()] for r in records]
    x = torch.zeros(len(rows), len(words), dtype=torch.float64)
    for i, row in enumerate(rows):
        x[i, row] = 1.0
    names = sorted({str(r["label"]) for r in records})
    return components(x[:, x.sum(0).topk(800).indices], 30), torch.tensor(
        [names.index(str(r["label"])) for r in records]
    )


CHOOSING = {
    "digits, softmax regression": Problem(bundled(load_digits), 0),
    "diabetes, linear regression": Problem(bundled(load_diabetes), 0, "gaussian"),
    "digits, network": Problem(bundled(load_digits), 10),
    "MNIST, network": Problem(pictures("MNIST"), 10),
    "concrete, network": Problem(regression("concrete"), 10, "gaussian"),
}
REPORTED = {
    "breast cancer, logistic regression": Problem(bundled(load_breast_cancer), 0),
    "adult, logistic regression": Problem(adult, 0),
    "kin8nm, linear regression": Problem(regression("kin8nm"), 0, "gaussian"),
    "Fashion-MNIST, network": Problem(pictures("FashionMNIST"), 10),
    "USPS, network": Problem(pictures("usps"), 10),
    "TREC, network": Problem(trec, 10),
    "energy, network": Problem(regression("energy"), 10, "gaussian"),
}


def split(problem: Problem, options: argparse.Namespace, seed: int) -> tuple[Data, Data]:
    """Training data with some wrong labels, and clean test data."""
    x, y = problem.data(options)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=g)
    n = min(options.n, 2 * len(y) // 3)
    x, y = x[order[: n + 1000]].double(), y[order[: n + 1000]].reshape(n + len(order[n : n + 1000]), -1)
    wrong = torch.randperm(n, generator=g)[: round(WRONG * n)]
    if problem.law == "gaussian":
        y = y.double()
        y[wrong] = y[wrong[torch.randperm(len(wrong), generator=g)]]
    else:
        y = y[:, 0]
        classes = int(y.max()) + 1
        y[wrong] = (y[wrong] + torch.randint(1, classes, (len(wrong),), generator=g)) % classes
    return (x[:n], y[:n]), (x[n:], y[n:])


def network(problem: Problem, data: Data) -> nn.Module:
    torch.manual_seed(0)
    d, k = data[0].shape[1], 1 if problem.law == "gaussian" else int(data[1].max()) + 1
    if not problem.hidden:
        return nn.Linear(d, k).double()
    return nn.Sequential(nn.Linear(d, problem.hidden), nn.Tanh(), nn.Linear(problem.hidden, k)).double()


def law(problem: Problem) -> Likelihood:
    return likelihood(problem.law, precision=4.0) if problem.law == "gaussian" else likelihood(problem.law)


def optimum(model: nn.Module, data: Data, ell: Likelihood, delta: float) -> nn.Module:
    """The model at the minimum of Σℓ + δ/2‖θ‖² next to where it starts."""
    model = copy.deepcopy(model)
    there = trainable(model)
    x, y = data

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        for p, new in zip(there.values(), from_vector(torch.from_numpy(flat.copy()), there).values()):
            p.data.copy_(new)
        loss = ell.loss(model(x), y).sum() + delta / 2 * sum(p.square().sum() for p in there.values())
        return loss.item(), to_vector(dict(zip(there, torch.autograd.grad(loss, list(there.values()))))).numpy()

    start = to_vector({name: p.detach() for name, p in there.items()}).numpy()
    options = {"maxiter": 3000, "maxfun": 4000, "gtol": 1e-6, "ftol": 0.0, "maxcor": 50}
    value(minimize(value, start, jac=True, method="L-BFGS-B", options=options).x)
    return model


def groups(data: Data, losses: Tensor, ell: Likelihood, seed: int, each: int) -> Iterator[tuple[str, int, str, Wish]]:
    """What is done, to how many examples, chosen how."""
    y, g = data[1], torch.Generator().manual_seed(seed)
    suspects = losses.argsort(descending=True)
    for size in SIZES:
        for _ in range(each):
            for how in ("random", "suspects", "class"):
                if how == "random":
                    rows = torch.randperm(len(y), generator=g)[:size]
                elif how == "suspects":
                    top = suspects[: max(2 * size, 20)]
                    rows = top[torch.randperm(len(top), generator=g)[:size]]
                else:  # of one label, or of amounts next to each other
                    near = (
                        y.double().reshape(len(y))
                        - y.double().reshape(len(y))[torch.randint(len(y), (1,), generator=g)]
                    ).abs()
                    alike = (near == near.min()).nonzero()[:, 0] if y.dim() == 1 else near.argsort()[:size]
                    rows = alike[torch.randperm(len(alike), generator=g)[:size]]
                yield "remove", size, how, (rows.tolist(), {})
                if y.dim() == 1:
                    classes = int(y.max()) + 1
                    new = (y[rows] + torch.randint(1, classes, (len(rows),), generator=g)) % classes
                else:
                    new = y[torch.randint(len(y), (len(rows),), generator=g), 0]
                yield "relabel", size, how, ([], dict(zip(rows.tolist(), new.tolist())))


def after(data: Data, wish: Wish) -> Data:
    x, y = data[0], data[1].clone()
    for i, new in wish[1].items():
        y[i] = new
    stay = torch.ones(len(y), dtype=torch.bool)
    stay[wish[0]] = False
    return x[stay], y[stay]


def mapped(kind: str, best: nn.Module, data: Data, problem: Problem, ell: Likelihood) -> MemoryMap:
    if kind != "variational":
        posterior = po.laplace(best, data, likelihood=ell, structure=kind, prior_precision=problem.delta)
        return po.memory_map(best, posterior, data)
    single = copy.deepcopy(best).float(), (data[0].float(), data[1] if data[1].dim() == 1 else data[1].float())
    run = po.fit(*single, likelihood=ell, prior=problem.delta, seed=0, progress=False, lr=1e-3)
    return po.memory_map(run.model, run.posterior, single[1])


def one(name: str, problem: Problem, options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    data, test = split(problem, options, seed)
    ell = law(problem)
    best = optimum(network(problem, data), data, ell, problem.delta)
    with torch.no_grad():
        losses = ell.loss(best(data[0]), data[1])
        before = ell.loss(best(test[0]), test[1]).mean().item()
    maps = {kind: mapped(kind, best, data, problem, ell) for kind in options.posteriors}
    for what, size, how, wish in groups(
        data, losses, ell, seed, options.each if not problem.hidden else -(-options.each // 2)
    ):
        started = time.process_time()
        again = optimum(best, after(data, wish), ell, problem.delta)
        with torch.no_grad():
            truth = ell.loss(again(test[0]), test[1]).mean().item() - before
        taken = time.process_time() - started
        for kind, m in maps.items():
            single = kind == "variational"
            on = (test[0].float(), test[1] if test[1].dim() == 1 else test[1].float()) if single else test
            for passes in options.passes:
                started = time.process_time()
                w = m.what_if(remove=wish[0], relabel=wish[1], passes=passes)
                found = w.on(on)
                yield {
                    "problem": name,
                    "seed": seed,
                    "posterior": kind,
                    "passes": passes,
                    "what": what,
                    "size": size,
                    "how": how,
                    "predicted": found.loss_change,
                    "actual": truth,
                    "warning": found.reliability.warning,
                    "leverage": w.reliability.max_leverage,
                    "rest": w.reliability.rest,
                    "seconds": taken,
                    "estimate_seconds": time.process_time() - started,
                }


def agreement(lines: list[report.Line]) -> list[str]:
    """Groups, rank correlation, share with the right sign, share within a factor of two."""
    if not lines:
        return ["0", "", "", ""]
    predicted, actual = (np.array([line[name] for line in lines]) for name in ("predicted", "actual"))
    near = (predicted / actual >= 0.5) & (predicted / actual <= 2)
    ranks = spearmanr(predicted, actual).statistic if len(lines) > 2 else float("nan")
    return [str(len(lines)), f"{ranks:.2f}", f"{100 * (predicted * actual > 0).mean():.0f}", f"{100 * near.mean():.0f}"]


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("What-if against retraining", lines, seeds=seeds, training_examples=options.n)
    text += "\n" + (__doc__ or "").strip() + "\n"
    groups_of = {
        name: len({line["actual"] for line in lines if line["problem"] == name}) for name in CHOOSING | REPORTED
    }
    text += "\nGroups in these tables: " + "; ".join(f"{name} {n}" for name, n in groups_of.items() if n) + ".\n"
    for title, problems in (("Problems that limits are reported on", REPORTED), ("Problems that chose them", CHOOSING)):
        mine = [line for line in lines if line["problem"] in problems]
        if not mine:
            continue
        text += f"\n### {title}\n\n"
        columns = ["", "posterior", "groups", "rank", "sign, %", "within 2x, %"]
        columns += ["not flagged, %", "groups", "rank", "sign, %", "within 2x, %"]
        rows = []
        for kind, linear in (("linear models", True), ("networks", False)):
            for passes in options.passes:
                for posterior in (*options.posteriors, "all"):
                    some = [
                        line
                        for line in mine
                        if (problems[line["problem"]].hidden == 0) == linear
                        and line["passes"] == passes
                        and posterior in (line["posterior"], "all")
                    ]
                    if some:
                        good = [line for line in some if not line["warning"]]
                        share = f"{100 * len(good) / len(some):.0f}"
                        name = f"{kind}, {'equation alone' if passes == 0 else f'{passes} passes'}"
                        rows.append([name, posterior, *agreement(some), share, *agreement(good)])
        text += report.table(columns, rows)
    lasting = [
        [np.median([line[k] for line in lines if line["passes"] == n]) for k in ("estimate_seconds", "seconds")]
        for n in options.passes
    ]
    text += "\nProcessor seconds of a group (median): "
    text += "; ".join(f"{n} passes {a:.2f}, retraining {b:.2f}" for n, (a, b) in zip(options.passes, lasting)) + "\n"
    report.publish("what_if", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--problems", nargs="+", default=[*CHOOSING, *REPORTED])
    arguments.add_argument("--posteriors", nargs="+", default=list(POSTERIORS), choices=POSTERIORS)
    arguments.add_argument("--passes", nargs="+", type=int, default=[0, 200])
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0])
    arguments.add_argument("--n", type=int, default=300, help="training examples, at most two thirds of all")
    arguments.add_argument("--each", type=int, default=2, help="groups of each kind; of networks half as many")
    report.study(arguments.parse_args(), runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for seed in options.seeds:
        for name in options.problems:
            yield from one(name, (CHOOSING | REPORTED)[name], options, seed)


if __name__ == "__main__":
    main()
