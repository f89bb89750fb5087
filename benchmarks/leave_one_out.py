"""Leave-one-out and groups: changes that are estimated without retraining, against retraining.

Models are trained to their optimum (sum of losses plus δ/2‖θ‖²) by Newton's method, then again without each of many
examples, or without a group, from the weights they had. Estimates come from Laplace posteriors of several structures,
to first order and deflated. "diag(V)" is the first order with only the diagonal of V, as in the code that the
memory-perturbation equation was published with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import report
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

import networks
import posterity as po
from posterity.likelihoods import Likelihood, likelihood
from posterity.memory import dual, memory_map
from posterity.memory.perturbation import change_of_outputs
from posterity.trees import from_vector, snapshot, to_vector, trainable

STEPS = 300
FRESH = 100  # weights up to which every retraining gets its own Hessian in every step


@dataclass(frozen=True)
class Setting:
    """A problem: data, network, prior precision."""

    data: Callable[[], tuple[Tensor, Tensor]]
    network: Callable[[], nn.Module]
    law: str
    delta: float


def breast_cancer() -> tuple[Tensor, Tensor]:
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0))
    return torch.cat([torch.ones(len(x), 1), x], dim=1), torch.tensor(y).unsqueeze(1)


def digits(n: int = 1797, intercept: bool = True) -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:n]
    x = torch.tensor(x / 16)[order]
    return torch.cat([torch.ones(n, 1), x], dim=1) if intercept else x, torch.tensor(y)[order]


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False)


SETTINGS = {
    "breast cancer, logistic, δ = 0.1": Setting(breast_cancer, lambda: linear(31, 1), "bernoulli", 0.1),
    "breast cancer, logistic, δ = 1": Setting(breast_cancer, lambda: linear(31, 1), "bernoulli", 1.0),
    "breast cancer, logistic, δ = 10": Setting(breast_cancer, lambda: linear(31, 1), "bernoulli", 10.0),
    "digits, softmax regression, δ = 1": Setting(digits, lambda: linear(65, 10), "categorical", 1.0),
    "300 digits, MLP 64-12-10, δ = 1": Setting(
        lambda: digits(300, intercept=False), lambda: networks.mlp((64, 12, 10), nn.Tanh), "categorical", 1.0
    ),
}
ESTIMATES = {
    "full, deflated": ("full", True),
    "full, first order": ("full", False),
    "Kronecker, first order": ("kron", False),
    "Kronecker, deflated": ("kron", True),
    "diagonal, first order": ("diag", False),
    "last layer, deflated": ("last_layer", True),
}


class Problem:
    """A model, its data, and retraining under other weights of the examples."""

    def __init__(self, setting: Setting) -> None:
        self.x, self.y = setting.data()
        self.law: Likelihood = likelihood(setting.law)
        self.delta = setting.delta
        torch.manual_seed(0)
        self.model = setting.network().double()
        self.like = snapshot(trainable(self.model))
        self._train()

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(self.model, from_vector(theta, self.like), (x,))

    def total(self, theta: Tensor, weights: Tensor) -> Tensor:
        losses = self.law.loss(self.outputs(theta, self.x), self.y)
        return (weights * losses).sum() + 0.5 * self.delta * theta.dot(theta)

    def _train(self) -> None:
        everything = torch.ones(len(self.y), dtype=self.x.dtype)
        theta = to_vector(self.like).requires_grad_()
        optimizer = torch.optim.LBFGS([theta], max_iter=2000, history_size=50, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.total(theta, everything)
            loss.backward()
            return loss

        for _ in range(5):
            optimizer.step(closure)
        self.theta = theta.detach()
        for _ in range(3):
            self.hessian = jacrev(grad(self.total))(self.theta, everything)
            gradient = grad(self.total)(self.theta, everything)
            self.theta = self.theta - torch.linalg.solve(self.hessian, gradient)
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), from_vector(self.theta, self.like).values()):
                p.copy_(value)

    def retrain(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B, P) under each weighting (B, N), and the norms of the gradients that were left."""
        thetas, steps = self.theta.expand(len(weights), -1).clone(), torch.ones(len(weights), 1, dtype=self.x.dtype)
        losses = vmap(self.total)(thetas, weights)
        fresh = len(self.theta) <= FRESH
        factor = torch.linalg.cholesky(self.hessian)
        for _ in range(STEPS):
            gradient = vmap(grad(self.total))(thetas, weights)
            if gradient.norm(dim=1).max() < 1e-9:
                break
            if fresh:
                hessians = vmap(jacrev(grad(self.total)))(thetas, weights)
                direction = torch.linalg.solve(hessians, gradient)
            else:
                direction = torch.cholesky_solve(gradient.mT, factor).mT
            tried = vmap(self.total)(thetas - steps * direction, weights)
            better = tried <= losses + 1e-12 * losses.abs()
            thetas = torch.where(better[:, None], thetas - steps * direction, thetas)
            losses = torch.where(better, tried, losses)
            steps = torch.where(better[:, None], (1.5 * steps).clamp_max(1.0), 0.5 * steps)
        return thetas, vmap(grad(self.total))(thetas, weights).norm(dim=1)


def compared(estimate: Tensor, truth: Tensor, f: Tensor, law: Likelihood) -> dict[str, float]:
    """How estimated outputs without each example compare with true ones."""
    a, b = (estimate - f).flatten(), (truth - f).flatten()
    before = law.mean(f)
    p, q = law.mean(estimate) - before, law.mean(truth) - before
    return {
        "pearson": np.corrcoef(a, b)[0, 1],
        "slope": ((a @ b) / (a @ a)).item(),
        "probabilities": np.corrcoef(p.flatten(), q.flatten())[0, 1],
        "spearman": spearmanr(p.abs().sum(-1), q.abs().sum(-1)).statistic,
    }


def leave_one_out(name: str, left_out: int) -> Iterator[report.Line]:
    problem = Problem(SETTINGS[name])
    count = min(left_out, len(problem.y))
    weights = 1 - torch.eye(len(problem.y), dtype=problem.x.dtype)[:count]
    start = time.perf_counter()
    parts = [problem.retrain(part) for part in weights.split(128)]
    retraining = time.perf_counter() - start
    thetas, left = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    fine = left < 1e-4
    x, y = problem.x[:count][fine], problem.y[:count][fine]
    truth = torch.stack([problem.outputs(t, a) for t, a in zip(thetas[fine], x)]).detach()
    f = problem.model(x).detach()
    nll = {"true": problem.law.loss(truth, y).mean().item(), "train": problem.law.loss(f, y).mean().item()}
    common = {"setting": name, "examples": int(fine.sum()), "unfinished": int((~fine).sum()), **nll}
    for label, (structure, deflate) in ESTIMATES.items():
        start = time.perf_counter()
        posterior = po.laplace(
            problem.model, (problem.x, problem.y), structure=structure, prior_precision=problem.delta,
            likelihood=problem.law,
        )  # fmt: skip
        d = dual(problem.model, posterior, (problem.x, problem.y))
        change = change_of_outputs(d.variance, d.curvature, d.residual, deflate=deflate)
        seconds = time.perf_counter() - start
        rows = {label: change}
        if label == "full, first order":
            rows["full, first order, diag(V)"] = d.variance.diagonal(dim1=1, dim2=2) * d.residual
        for row, found in rows.items():
            estimate = (d.outputs + found)[:count][fine]
            scores = compared(estimate, truth, f, problem.law)
            loo = problem.law.loss(estimate, y).mean().item()
            yield {**common, "estimate": row, "nll": loo, "seconds": seconds, "retraining": retraining, **scores}


def groups(name: str) -> Iterator[report.Line]:
    """Groups of growing size, and whole classes: the change of all outputs."""
    problem = Problem(SETTINGS[name])
    n, y = len(problem.y), problem.y
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    chosen = {f"{share:.0%} at random": order[: round(share * n)] for share in (0.01, 0.05, 0.1, 0.2)}
    chosen |= {f"all of class {k}": (y == k).nonzero()[:, 0] for k in range(10)}
    f = problem.model(problem.x).detach()
    for structure in ("full", "kron"):
        posterior = po.laplace(problem.model, (problem.x, y), structure=structure, prior_precision=problem.delta)
        m = memory_map(problem.model, posterior, (problem.x, y))
        for label, ids in chosen.items():
            weights = torch.ones(1, n, dtype=problem.x.dtype)
            weights[0, ids] = 0.0
            theta, left = problem.retrain(weights)
            truth = problem.outputs(theta[0], problem.x).detach()
            what_if = m.what_if(remove=ids.tolist())
            outcome = what_if.on((problem.x, y))
            yield {
                "setting": name, "group": label, "structure": structure, "size": len(ids),
                "leverage": what_if.reliability.max_leverage, "warning": what_if.reliability.warning,
                "loss_change": outcome.loss_change, "left": left.item(),
                "true_change": (problem.law.loss(truth, y) - problem.law.loss(f, y)).mean().item(),
                **compared(f + outcome.change, truth, f, problem.law),
            }  # fmt: skip


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--left-out", type=int, default=300, help="examples to retrain without, one at a time")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    report.study(parser.parse_args(), runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for name in options.settings:
        yield from leave_one_out(name, options.left_out)
    for name in options.settings:
        if "digits" in name:
            yield from groups(name)


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Leave-one-out and groups, estimated against retrained", left_out=options.left_out)
    single = [line for line in lines if "estimate" in line]
    for name in dict.fromkeys(line["setting"] for line in single):
        mine = [line for line in single if line["setting"] == name]
        first = mine[0]
        text += f"\n### {name}\n\nTrue leave-one-out NLL {first['true']:.4f}, training NLL {first['train']:.4f}, "
        text += f"{first['examples']} retrainings in {first['retraining']:.0f} s"
        text += f" ({first['unfinished']} did not converge)\n\n" if first["unfinished"] else "\n\n"
        columns = ["estimate", "NLL", "Δf: r", "Δf: slope", "Δp: r", "‖Δp‖₁: Spearman", "seconds"]
        keys = ["nll", "pearson", "slope", "probabilities", "spearman"]
        rows = [[line["estimate"], *(f"{line[k]:.4f}" for k in keys), f"{line['seconds']:.1f}"] for line in mine]
        text += report.table(columns, rows)
    text += "\n### Groups\n\nOf whole classes, the means over all ten.\n\n"
    report.publish("leave_one_out", text + group_table([line for line in lines if "group" in line]), options.out)


def group_table(lines: list[report.Line]) -> str:
    together: dict[tuple[str, str, str], list[report.Line]] = {}
    for line in lines:
        group = "a class" if "class" in line["group"] else line["group"]
        together.setdefault((line["setting"], group, line["structure"]), []).append(line)
    kinds = {"full": "full, deflated", "kron": "Kronecker, first order"}
    keys = ["leverage", "true_change", "loss_change", "pearson", "slope"]
    rows = [
        [setting, group, kinds[structure], *(f"{np.mean([line[k] for line in found]):.3f}" for k in keys)]
        for (setting, group, structure), found in together.items()
    ]
    columns = [
        "setting",
        "removed",
        "estimate",
        "leverage",
        "Δloss, retrained",
        "Δloss, estimated",
        "Δf: r",
        "Δf: slope",
    ]
    return report.table(columns, rows)


if __name__ == "__main__":
    main()
