"""Linearised Laplace predictions at their own width, and at a width that leave-one-out chooses.

A perceptron (50 hidden units) is trained by AdamW for a short and for a long time. Its Laplace posterior has the prior
of largest marginal likelihood. "At the mean" predicts without uncertainty, "default" is `po.predict`. The other columns
scale the covariance of the outputs by T: the T ≤ 1 under which leave-one-out predictions N(f + V r, T V) of the
training data are most likely (r the residual), and T = 0.03, chosen on these problems. AUROC: foreign inputs (each
column shuffled over the test rows) found by entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import report
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import Tensor, nn

import posterity as po
from posterity.curvature import prediction_covariance

SCALES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
FIXED = 0.03
TRAININGS = {"short": {"epochs": 60, "lr": 1e-3}, "long": {"epochs": 300, "lr": 1e-2}}
DRAWS = 64


def table(load: object, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardised columns and labels, in a fixed random order: n rows to train on, the others to test."""
    x, y = load(return_X_y=True)  # type: ignore[operator]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    spread = x[:n].std(0)
    x = (x - x[:n].mean(0)) / torch.where(spread > 0, spread, 1.0)
    return x[:n], y[:n], x[n:], y[n:]


PROBLEMS = {
    "digits, 1000 rows": lambda: table(load_digits, 1000),
    "digits, 200 rows": lambda: table(load_digits, 200),
    "breast cancer, 300 rows": lambda: table(load_breast_cancer, 300),
    "wine, 100 rows": lambda: table(load_wine, 100),
}


def averaged(f: Tensor, V: Tensor, scale: float) -> Tensor:
    """Class probabilities under N(f, scale · V)."""
    f, V = f.double(), V.double()
    values, vectors = torch.linalg.eigh(V)
    root = (vectors * (scale * values.clamp_min(0)).sqrt().unsqueeze(-2)) @ vectors.mT
    half = torch.randn(DRAWS // 2, 1, f.shape[1], generator=torch.Generator().manual_seed(0), dtype=f.dtype)
    return (f + torch.einsum("nkl,sml->snk", root, torch.cat((half, -half)))).softmax(-1).mean(0)


def entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)


@torch.no_grad()
def outputs(model: nn.Module, posterior: po.Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    return model(x), prediction_covariance(model, x, posterior.covariance())


def chosen(model: nn.Module, posterior: po.Posterior, x: Tensor, y: Tensor) -> float:
    """The scale under which leave-one-out predictions of the training data are most likely."""
    f, V = outputs(model, posterior, x)
    residual = f.softmax(-1) - nn.functional.one_hot(y, f.shape[1])
    without = f + torch.einsum("nkl,nl->nk", V, residual)
    return min(SCALES, key=lambda scale: po.metrics.nll(averaged(without, V, scale), y))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for problem in options.problems:
        x, y, x_test, y_test = PROBLEMS[problem]()
        generator = torch.Generator().manual_seed(1)
        foreign = torch.stack([c[torch.randperm(len(c), generator=generator)] for c in x_test.T], 1)
        for training, settings in TRAININGS.items():
            torch.manual_seed(options.seed)
            model = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, int(y.max()) + 1))
            po.fit(model, (x, y), method="adamw", batch_size=64, seed=options.seed, progress=False, **settings)
            for structure in ("diag", "kron", "last_layer"):
                posterior = po.laplace(model, (x, y), structure=structure)
                inside, outside = (outputs(model, posterior, part) for part in (x_test, foreign))
                found: dict[str, tuple[float, float]] = {}
                loo = chosen(model, posterior, x, y)
                for name, scale in (("mean", 0.0), ("default", 1.0), ("loo", loo), ("fixed", FIXED)):
                    here, there = averaged(*inside, scale), averaged(*outside, scale)
                    found[name] = po.metrics.nll(here, y_test), po.metrics.ood_auroc(entropy(here), entropy(there))
                yield {
                    "problem": problem, "training": training, "structure": structure, "scale": loo, "found": found,
                    "accuracy": po.metrics.accuracy(averaged(*inside, 0.0), y_test),
                }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = []
    for line in lines:
        cells = [f"{nll:.3f} ({auroc:.3f})" for nll, auroc in (tuple(pair) for pair in line["found"].values())]
        accuracy = f"{100 * line['accuracy']:.1f}"
        rows.append([line["problem"], line["training"], line["structure"], accuracy, *cells, f"{line['scale']:g}"])
    text = report.header("The width of linearised Laplace predictions", lines, seed=options.seed)
    text += "\n" + (__doc__ or "").split("\n\n", 1)[1].rstrip() + "\n\nTest NLL, and in brackets the AUROC.\n\n"
    columns = [
        "data",
        "training",
        "structure",
        "accuracy %",
        "at the mean",
        "default",
        "T by leave-one-out",
        "T = 0.03",
        "T",
    ]
    report.publish("laplace_temperature", text + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
