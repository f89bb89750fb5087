"""Widths that chain: precisions of `po.fit` beside exact mean-field variational inference.

Logistic regression with overlapping classes and linear regression with known noise, in five weights, prior precision 1.
The reference minimises E_q[loss] + KL(q ‖ prior) over diagonal Gaussians by fixed-point iteration, with Gauss-Hermite
quadrature over each example's output:

    P_j = 1 + Σ_i x_ij² E_q[σ′(x_iᵀθ)],    ∇_m E_q[loss] + m = 0

The ratio is that of the precisions at temperature 1, a geometric mean over the weights; 1 is exact. "12 chunks" learns
a twelfth of the data at a time, with the posterior before as the prior.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import report
import torch
from torch import nn

import posterity as po

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def made(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    f = x @ np.array([1.0, -1.0, 0.5, 0.0, 0.25])
    y = rng.uniform(size=n) < 1 / (1 + np.exp(-f)) if kind == "logistic" else f + rng.normal(size=n)
    return x, y.astype(float)


def exact(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Precisions of the exact mean-field posterior."""
    m, p = np.zeros(x.shape[1]), 1 + (x**2).sum(0)
    if kind == "linear":
        return p
    for _ in range(500):
        f, s = x @ m, np.sqrt((x**2) @ (1 / p))
        sigma = 1 / (1 + np.exp(-(f[:, None] + s[:, None] * NODES)))
        mean, slope = sigma @ WEIGHTS, (sigma * (1 - sigma)) @ WEIGHTS
        p_new = 1 + (x**2 * slope[:, None]).sum(0)
        hessian = x.T @ (x * slope[:, None]) + np.eye(x.shape[1])
        step = np.linalg.solve(hessian, x.T @ (mean - y) + m)
        m, p, p_old = m - step, p_new, p
        if np.abs(step).max() < 1e-10 and np.abs(p / p_old - 1).max() < 1e-10:
            break
    return p


def found(kind: str, x: np.ndarray, y: np.ndarray, chunks: int, method: str | None, seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 1, bias=False)
    law = "bernoulli" if kind == "logistic" else po.likelihoods.GaussianLikelihood(1.0)
    options = {} if method is None else {"method": method}
    prior: object = 1.0
    for rows in np.array_split(np.arange(len(y)), chunks):
        data = (torch.tensor(x[rows], dtype=torch.float32), torch.tensor(y[rows], dtype=torch.float32).unsqueeze(1))
        posterior = po.fit(model, data, likelihood=law, prior=prior, seed=seed, progress=False, **options).posterior
        prior = posterior
    precision = posterior.structure.precision_diagonal()["weight"][0].double().numpy()
    return precision * posterior.n / posterior.ess


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for seed in options.seeds:
        for kind in ("logistic", "linear"):
            for n in options.sizes:
                x, y = made(kind, n, seed)
                reference = exact(kind, x, y)
                for chunks in (1, 12):
                    ratio = found(kind, x, y, chunks, options.method, seed) / reference
                    mean, worst = float(np.exp(np.log(ratio).mean())), float(np.abs(np.log2(ratio)).max())
                    line = {"kind": kind, "n": n, "chunks": chunks, "seed": seed}
                    yield line | {"ratio": mean, "worst": worst}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    facts = {"method": options.method or "the default of fit", "seeds": options.seeds}
    text = report.header("Widths that chain", lines, **facts) + "\n" + (__doc__ or "").strip() + "\n\n"
    rows = []
    for kind, n, chunks in dict.fromkeys((line["kind"], line["n"], line["chunks"]) for line in lines):
        mine = [line for line in lines if (line["kind"], line["n"], line["chunks"]) == (kind, n, chunks)]
        worst = 2 ** max(line["worst"] for line in mine)
        ratios = report.spread([line["ratio"] for line in mine], 2)
        rows.append([kind, n, "all at once" if chunks == 1 else "12 chunks", ratios, f"{worst:.1f}"])
    text += report.table(["regression", "N", "learnt", "ratio of precisions", "worst factor of a weight"], rows)
    report.publish("widths", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--method", help="of po.fit; by default its default")
    arguments.add_argument("--sizes", nargs="+", type=int, default=[50, 200, 1000, 5000])
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options)


if __name__ == "__main__":
    main()
