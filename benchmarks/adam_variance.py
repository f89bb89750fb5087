"""Is 1/√s a variance? What RMSprop's scale, SOBA and IVON say about each weight, against the exact mean field.

The reference is the mean-field Gaussian that maximises the evidence lower bound: by quadrature for a logistic
regression in two dimensions, by L-BFGS on 4096 fixed quasi-random draws for a small tanh network. Each method trains on
minibatches of the same loss; a precision is N√s + δ or N s + δ from RMSprop's average s of squared gradients, and the
method's own for SOBA (the diagonal improved rule) and IVON. Coverage is the share of the exact marginal inside the
method's 95 % interval around the exact mean.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import report
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from posterity.families import DiagonalGaussian
from posterity.gradients import DataLoss, MonteCarlo, Stein
from posterity.optim import IVON
from posterity.rule import BayesianLearningRule, robbins_monro

N, PRIOR, STEPS = 200, 1.0, 12000


def logistic(theta: Tensor, x: Tensor) -> Tensor:
    return (x @ theta).unsqueeze(-1)


def network(theta: Tensor, x: Tensor) -> Tensor:
    """Two inputs, four tanh units, one output: 17 weights."""
    hidden = torch.tanh(x @ theta[:8].view(2, 4) + theta[8:12])
    return (hidden @ theta[12:16] + theta[16]).unsqueeze(-1)


def problem(model: Callable[[Tensor, Tensor], Tensor]) -> DataLoss:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64) @ torch.tensor([[1.0, 0.6], [0.0, 1.2]]).double()
    score = 1.5 * x[:, 0] - x[:, 1] if model is logistic else 2 - x.square().sum(-1)
    y = torch.bernoulli(torch.sigmoid(score), generator=generator).unsqueeze(-1)
    return DataLoss(inputs=x, targets=y, likelihood="bernoulli", model=model)


def mean_field(loss: DataLoss, start: Tensor, draws: int = 4096) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the mean-field optimum, by L-BFGS on fixed normal scores of a Sobol sequence."""
    d = len(start)
    uniform = torch.tensor(scipy.stats.qmc.Sobol(d, seed=0).random(draws))
    epsilon = torch.distributions.Normal(0.0, 1.0).icdf(uniform.clamp(1e-9, 1 - 1e-9)).double()
    epsilon = (epsilon - epsilon.mean(0)) / epsilon.std(0, correction=0)
    total = torch.func.vmap(lambda theta: loss(theta) + 0.5 * PRIOR * theta.square().sum(), chunk_size=512)

    def negative_bound(flat: object) -> tuple[float, object]:
        parameters = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        mean, log_std = parameters[:d], parameters[d:]
        value = total(mean + log_std.exp() * epsilon).mean() - log_std.sum()
        (gradient,) = torch.autograd.grad(value, parameters)
        return value.item(), gradient.numpy()

    first = torch.cat((start, torch.full((d,), -1.0, dtype=torch.float64))).numpy()
    best = scipy.optimize.minimize(negative_bound, first, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    solution = torch.tensor(best.x)
    return solution[:d], solution[d:].exp()


def batches(loss: DataLoss, size: int, seed: int) -> list[DataLoss]:
    stream = loss.minibatches(size, seed=seed)
    return [next(stream) for _ in range(STEPS)]


def rmsprop_scale(loss: DataLoss, start: Tensor, size: int) -> Tensor:
    """Average of squared minibatch mean gradients, after RMSprop has settled."""
    theta, s = start.clone(), torch.zeros_like(start)
    for t, part in enumerate(batches(loss, size, seed=1), 1):
        gradient = torch.func.grad(lambda w, part=part: (part(w) + 0.5 * PRIOR * w.square().sum()) / N)(theta)
        s += 0.001 * (gradient.square() - s)
        theta -= 1e-2 / (1 + 10 * t / STEPS) * gradient / (s.sqrt() / (1 - 0.999**t) ** 0.5 + 1e-8)
    return s / (1 - 0.999**STEPS)


def soba_precision(loss: DataLoss, start: Tensor, size: int) -> Tensor:
    prior = DiagonalGaussian(torch.zeros_like(start), torch.full_like(start, PRIOR))
    gradient = MonteCarlo(1, curvature=Stein(), generator=torch.Generator().manual_seed(3))
    rule = BayesianLearningRule(gradient, lr=robbins_monro(delay=200.0, forgetting=0.8), prior=prior, retracted=True)
    q = DiagonalGaussian(start, torch.full_like(start, 20.0))
    return rule.run(q, batches(loss, size, seed=2), steps=STEPS).precision


def ivon_precision(loss: DataLoss, start: Tensor, size: int) -> Tensor:
    theta = start.clone().requires_grad_()
    settings = {"lr": 0.1, "ess": N, "hess_init": 0.1, "weight_decay": PRIOR / N, "seed": 4}
    optimizer = IVON([theta], **settings, betas=(0.9, 0.999))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    total = torch.zeros_like(start)
    for t, part in enumerate(batches(loss, size, seed=3)):
        with optimizer.sampled_params(train=True):
            (part(theta) / N).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if t >= STEPS // 2:  # the last half, averaged: what is left of the noise of one sample a step
            total += optimizer.state[theta]["hessian"]
    return N * (total / (STEPS - STEPS // 2) + PRIOR / N)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--picture", default=None)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = []
    for line in lines:
        ratio = torch.tensor(line["std"]).log() - torch.tensor(line["exact"]).log()
        inside = 2 * torch.distributions.Normal(0, 1).cdf(1.96 * ratio.exp()) - 1
        rows.append(
            [
                line["problem"],
                line["method"],
                f"{2 * ratio.mean():+.2f}",
                f"{2 * ratio.min():+.2f} to {2 * ratio.max():+.2f}",
                f"{100 * inside.mean():.1f} %",
            ]
        )
    text = report.header("Is 1/√s a variance?", lines, n=N, prior_precision=PRIOR, steps=STEPS)
    columns = ["problem", "variance", "mean log-ratio to exact", "smallest to largest", "coverage of 95 % intervals"]
    report.publish("adam_variance", text + "\n" + report.table(columns, rows), options.out)
    if options.picture:
        picture(lines, Path(options.picture))


def runs(_: argparse.Namespace):
    for name, model, d in (("logistic, 2 weights", logistic, 2), ("tanh network, 17 weights", network, 17)):
        loss = problem(model)
        start = 0.5 * torch.randn(d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        mean, exact = mean_field(loss, start)
        precisions = {}
        for size in (1, 20):
            s = rmsprop_scale(loss, mean, size)
            precisions[f"RMSprop 1/√s, batch {size}"] = N * s.sqrt() + PRIOR
            precisions[f"RMSprop 1/s, batch {size}"] = N * s + PRIOR
        precisions["SOBA, batch 20"] = soba_precision(loss, mean, 20)
        precisions["IVON, batch 20"] = ivon_precision(loss, mean, 20)
        for method, precision in precisions.items():
            yield {"problem": name, "method": method, "std": precision.rsqrt().tolist(), "exact": exact.tolist()}


def message(lines: list[report.Line]) -> str:
    """How far the variances of each kind are from the exact ones, at most."""
    far = {"RMSprop": 1.0, "": 1.0}
    for line in lines:
        ratio = 2 * (torch.tensor(line["std"]) / torch.tensor(line["exact"])).log().abs().max().item()
        kind = "RMSprop" if "RMSprop" in line["method"] else ""
        far[kind] = max(far[kind], math.exp(ratio))
    return (
        f"RMSprop's scale s is no variance: 1/√s and 1/s are up to {far['RMSprop']:.0f} times off and depend on the\n"
        f"batch size. The variances of IVON and SOBA are within {100 * (far[''] - 1):.0f} % of the exact ones"
    )


def picture(lines: list[report.Line], path: Path) -> None:
    plt = report.drawing()
    problems = list(dict.fromkeys(line["problem"] for line in lines))
    figure, axes = plt.subplots(1, len(problems), figsize=(12, 5), sharey=True, layout="constrained")
    for axis, name in zip(axes, problems, strict=True):
        mine = [line for line in lines if line["problem"] == name]
        for i, line in enumerate(mine):
            ratio = (torch.tensor(line["std"]) / torch.tensor(line["exact"])).square()
            good = line["method"].startswith(("SOBA", "IVON"))
            axis.scatter(ratio, torch.full_like(ratio, i), color="tab:blue" if good else "tab:red", alpha=0.7)
        axis.axvline(1.0, color="k", lw=1)
        axis.set(xscale="log", title=name, xlabel="variance / exact mean-field variance", yticks=range(len(mine)))
        axis.set_yticklabels([line["method"] for line in mine])
        axis.grid(True, axis="x", color="#E3E3E3")
    axes[0].invert_yaxis()  # of both, which share it
    figure.suptitle(message(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
