"""UCI regression, standard splits: log-likelihood and RMSE of a point and five kinds of posterior, one small network.

One hidden layer (50 units, 100 for protein), inputs and targets standardised on the training part. All splits train at
once: their networks are stacked along a leading axis and every method sees the sum of the splits' losses, which leaves
each network's gradient its own. The noise precision of each split is learnt as `posterity.fit` learns it, from squared
errors of training passes; log-likelihoods are those of the averaged predictive density, in the target's own units.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import datasets
import report
import torch
from torch import Tensor

import posterity as po
from posterity.optim import IVON

SMALL = ("boston", "concrete", "energy", "wine", "yacht")
LARGE = ("kin8nm", "naval", "power", "protein")
METHODS = ("MAP", "IVON", "Laplace", "MC dropout", "Bayes by backprop", "ensemble")
SAMPLES = 100
RATE = 0.05
PRIOR = 1.0  # prior precision of every weight, on standardised data


@dataclass(frozen=True)
class Problem:
    """All splits of one data set, standardised: leading axis = split."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    y_std: Tensor
    hidden: int

    @property
    def n(self) -> int:
        return self.x.shape[1]


def load(root: Path, name: str, splits: int, device: str) -> Problem:
    data = datasets.uci_regression(root, name)
    x, y = (torch.tensor(data[key], dtype=torch.float64) for key in ("X", "y"))
    y = y.reshape(-1, 1)
    train, test = (torch.tensor(data[key][:splits]).long() for key in ("train_idx", "test_idx"))
    x_mean, x_std = x[train].mean(1, keepdim=True), x[train].std(1, keepdim=True).clamp(min=1e-8)
    y_mean, y_std = y[train].mean(1, keepdim=True), y[train].std(1, keepdim=True)
    parts = (
        (x[train] - x_mean) / x_std,
        (y[train] - y_mean) / y_std,
        (x[test] - x_mean) / x_std,
        (y[test] - y_mean) / y_std,
    )
    moved = (part.float().to(device) for part in parts)
    return Problem(*moved, y_std.flatten().to(device), 100 if name == "protein" else 50)


def initial(problem: Problem, seed: int) -> dict[str, Tensor]:
    """Stacked parameters of one-hidden-layer networks, one for each split."""
    generator = torch.Generator().manual_seed(seed)
    splits, width, hidden = problem.x.shape[0], problem.x.shape[2], problem.hidden

    def uniform(*shape: int, fan_in: int) -> Tensor:
        return ((2 * torch.rand(splits, *shape, generator=generator) - 1) / math.sqrt(fan_in)).to(problem.x.device)

    return {
        "0.weight": uniform(width, hidden, fan_in=width),
        "0.bias": uniform(1, hidden, fan_in=width),
        "2.weight": uniform(hidden, 1, fan_in=hidden),
        "2.bias": uniform(1, 1, fan_in=hidden),
    }


def forward(w: dict[str, Tensor], x: Tensor, rate: float = 0.0) -> Tensor:
    """Outputs (splits, batch, 1); with a rate, inputs to both layers lose units at random."""
    hidden = torch.relu(torch.dropout(x, rate, rate > 0) @ w["0.weight"] + w["0.bias"])
    return torch.dropout(hidden, rate, rate > 0) @ w["2.weight"] + w["2.bias"]


class Noise:
    """The learnt noise precision of every split: an average of squared errors over the last epoch's steps."""

    def __init__(self, problem: Problem, steps: int) -> None:
        self.keep = 1 - 1 / steps
        self.error = self.mass = torch.zeros(len(problem.x), 1, 1, device=problem.x.device)

    def update(self, residual: Tensor) -> None:
        self.error = self.keep * self.error + residual.detach().square().sum((1, 2), keepdim=True)
        self.mass = self.keep * self.mass + residual.shape[1]

    @property
    def precision(self) -> Tensor:
        return (self.mass / self.error).clamp(1e-4, 1e6) if bool((self.mass > 0).all()) else torch.ones_like(self.mass)


def minibatches(problem: Problem, batch: int, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(problem.n, generator=generator).to(problem.x.device)
        for index in order.split(batch):
            yield problem.x[:, index], problem.y[:, index]


def run_training(
    problem: Problem, w: dict[str, Tensor], optimizer: torch.optim.Optimizer, batch: int, epochs: int, seed: int,
    predict: Callable[[Tensor], Tensor], penalty: Callable[[], Tensor] | None = None,
) -> Noise:  # fmt: skip
    """Minimise the mean loss of every split at once, cosine schedule; the penalty is already divided by N."""
    steps = epochs * math.ceil(problem.n / batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    noise = Noise(problem, math.ceil(problem.n / batch))

    def evaluate(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        residual = predict(x) - y
        noise.update(residual)
        loss = (0.5 * noise.precision * residual.square()).mean((1, 2)).sum()
        loss = loss if penalty is None else loss + penalty()
        loss.backward()
        return loss

    for x, y in minibatches(problem, batch, epochs, seed):
        optimizer.step(partial(evaluate, x, y))
        schedule.step()
    return noise


def leaves(w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.clone().requires_grad_() for name, t in w.items()}


def fit_map(problem: Problem, batch: int, epochs: int, seed: int, rate: float = 0.0) -> tuple[dict[str, Tensor], Noise]:
    w = leaves(initial(problem, seed))
    optimizer = torch.optim.Adam(w.values(), lr=1e-2)

    def penalty() -> Tensor:
        return 0.5 * PRIOR / problem.n * sum(t.square().sum() for t in w.values())

    noise = run_training(problem, w, optimizer, batch, epochs, seed, lambda x: forward(w, x, rate), penalty)
    return {name: t.detach() for name, t in w.items()}, noise


def draws_map(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    w, noise = fit_map(problem, batch, epochs, seed)
    return forward(w, problem.x_test).unsqueeze(0), noise.precision


def draws_ensemble(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    members = [draws_map(problem, batch, epochs, 100 * seed + k) for k in range(5)]
    outputs, precisions = zip(*members, strict=True)
    return torch.cat(outputs), torch.stack(precisions).mean(0)


def draws_dropout(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    w, noise = fit_map(problem, batch, epochs, seed, RATE)
    return torch.stack([forward(w, problem.x_test, RATE) for _ in range(SAMPLES)]), noise.precision


def draws_ivon(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    w = leaves(initial(problem, seed))
    steps = epochs * math.ceil(problem.n / batch)
    optimizer = IVON(
        list(w.values()), lr=0.1, ess=problem.n, hess_init=0.5, betas=(0.9, "auto"), total_steps=steps,
        weight_decay=PRIOR / problem.n, clip_radius=1.0, seed=seed,
    )  # fmt: skip
    noise = run_training(problem, w, optimizer, batch, epochs, seed, lambda x: forward(w, x))
    outputs = []
    for _ in range(SAMPLES):
        with optimizer.sampled_params(), torch.no_grad():
            outputs.append(forward(w, problem.x_test))
    return torch.stack(outputs), noise.precision


def draws_backprop(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    mean = leaves(initial(problem, seed))
    log_std = {name: torch.full_like(t, -3.0).requires_grad_() for name, t in mean.items()}
    optimizer = torch.optim.Adam([*mean.values(), *log_std.values()], lr=1e-2)

    def sample() -> dict[str, Tensor]:
        return {name: m + log_std[name].exp() * torch.randn_like(m) for name, m in mean.items()}

    def kl() -> Tensor:
        terms = (
            0.5 * (PRIOR * (m.square() + (2 * s).exp()) - 1 - math.log(PRIOR)) - s
            for m, s in zip(mean.values(), log_std.values(), strict=True)
        )
        return sum(term.sum() for term in terms) / problem.n

    noise = run_training(problem, mean, optimizer, batch, epochs, seed, lambda x: forward(sample(), x), kl)
    with torch.no_grad():
        return torch.stack([forward(sample(), problem.x_test) for _ in range(SAMPLES)]), noise.precision


def draws_laplace(problem: Problem, batch: int, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Full Laplace at each split's optimum, prior precision and noise by marginal likelihood, linearised predictive."""
    w, _ = fit_map(problem, batch, epochs, seed)
    outputs, precisions = [], []
    for split in range(len(problem.x)):
        model = torch.nn.Sequential(
            torch.nn.Linear(problem.x.shape[2], problem.hidden), torch.nn.ReLU(), torch.nn.Linear(problem.hidden, 1)
        ).to(problem.x.device).double()  # fmt: skip
        state = {name: (t[split].T if name.endswith("weight") else t[split, 0]) for name, t in w.items()}
        model.load_state_dict(state)
        data = (problem.x[split].double(), problem.y[split].double())
        posterior = po.laplace(model, data, likelihood="gaussian", structure="full", prior_precision="marglik")
        x_test = problem.x_test[split].double()
        prediction = po.predict(model, posterior, x_test, method="linearised", samples=SAMPLES)
        noise = 1 / posterior.likelihood.precision
        spread = (prediction.std.square() - noise).clamp(min=0).sqrt()
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(SAMPLES, *spread.shape, generator=generator, dtype=torch.float64).to(spread)
        outputs.append(prediction.mean + spread * draws)
        precisions.append(posterior.likelihood.precision)
    return torch.stack(outputs, 1).float(), torch.tensor(precisions, device=problem.x.device).view(-1, 1, 1).float()


DRAWS = dict(
    zip(METHODS, (draws_map, draws_ivon, draws_laplace, draws_dropout, draws_backprop, draws_ensemble), strict=True)
)


def scores(problem: Problem, outputs: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Test log-likelihood and RMSE of each split, in the target's own units."""
    log_density = (
        0.5 * (precision.log() - math.log(2 * math.pi)) - 0.5 * precision * (problem.y_test - outputs).square()
    )
    log_mean = log_density.logsumexp(0) - math.log(len(outputs))
    likelihood = log_mean.mean((1, 2)) - problem.y_std.float().log()
    rmse = (outputs.mean(0) - problem.y_test).square().mean((1, 2)).sqrt() * problem.y_std
    return likelihood, rmse


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--sets", nargs="+", default=[*SMALL, *LARGE])
    arguments.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments.add_argument("--splits", type=int, help="how many splits (default: 20 for small sets, 5 for large)")
    arguments.add_argument("--epochs", type=int, help="default: 200 for small sets, 60 for large")
    options = arguments.parse_args()
    torch.manual_seed(0)
    report.study(options, runs, publish)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    for name in options.sets:
        small = name in SMALL
        problem = load(root, name, options.splits or (20 if small else 5), device)
        epochs = options.epochs or (200 if small else 60)
        for method in options.methods:
            start = time.perf_counter()
            likelihood, rmse = scores(problem, *DRAWS[method](problem, 32 if small else 128, epochs, seed=0))
            yield {
                "set": name, "method": method, "epochs": epochs, "splits": len(problem.x),
                "loglik": likelihood.tolist(), "rmse": rmse.tolist(), "seconds": time.perf_counter() - start,
            }  # fmt: skip


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header(
        "UCI regression, one hidden layer", lines, samples=SAMPLES, prior_precision=PRIOR, dropout=RATE, seed=0
    )
    for key, title in (("loglik", "Test log-likelihood (higher is better)"), ("rmse", "Test RMSE")):
        names = list(dict.fromkeys(line["set"] for line in lines))
        methods = [m for m in METHODS if any(line["method"] == m for line in lines)]
        rows = []
        for name in names:
            mine = {line["method"]: line for line in lines if line["set"] == name}
            first = next(iter(mine.values()))
            digits = 4 if key == "rmse" and name == "naval" else 3
            cells = [report.spread(mine[m][key], digits) if m in mine else "" for m in methods]
            rows.append([name, first["splits"], first["epochs"], *cells])
        text += f"\n### {title}\n\n" + report.table(["set", "splits", "epochs", *methods], rows)
    report.publish("uci", text, options.out)


if __name__ == "__main__":
    main()
