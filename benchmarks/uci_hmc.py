"""UCI energy, one hidden layer of 50: how near to a long run of HMC are IVON, ensembles and mixtures?

All share one posterior: tanh units, weights N(0, 1) a priori, targets with noise 0.1 in standardised units. HMC (see
hmc.py) is checked by split R-hat of its predictions; the other half of its chains says how near two runs of HMC are.
The rest is trained on the whole data and predicts with 1200 draws. Compared are the predictive distributions of each
test target: overlap of 90 % intervals (intersection over union), total variation, Wasserstein-2 distance.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import hmc
import numpy as np
import report
import torch
from torch import Tensor, nn
from training import device

import networks
from posterity.optim import IVON, MixtureIVON

HIDDEN, NOISE = 50, 0.1
MEMBERS = 6
ROWS = ("HMC, other half", "IVON", "ensemble of points", "ensemble of IVONs", "mixture", "mixture from one start")


@dataclass(frozen=True)
class Data:
    """The standardised training part, and the test inputs."""

    x: Tensor
    y: Tensor
    x_test: Tensor

    @property
    def n(self) -> int:
        return len(self.x)


def load(options: argparse.Namespace) -> Data:
    found = datasets.uci_regression(datasets.folder(options.data), "energy")
    x, y = (torch.tensor(found[key], dtype=torch.float64) for key in ("X", "y"))
    train, test = (torch.tensor(found[key][options.split]).long() for key in ("train_idx", "test_idx"))
    y = y.reshape(-1)
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = (y - y[train].mean()) / y[train].std()
    return Data(*(t.to(device()) for t in (x[train], y[train], x[test])))


# ── HMC ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def exact_draws(data: Data, options: argparse.Namespace) -> tuple[Tensor, dict[str, float]]:
    """Test predictions (chains, kept, tests) of HMC, perhaps of an earlier run, and what is known of them."""
    kept = Path(options.draws) if options.draws else None
    if kept is not None and kept.exists():
        found = np.load(kept)
        return torch.from_numpy(found["draws"]).double().to(device()), json.loads(str(found["known"]))
    start = time.perf_counter()
    chains = hmc.Chains(hmc.Regression(data.x, data.y, HIDDEN, NOISE), options.chains, options.leapfrogs, seed=0)
    chains.warm_up(options.warmup)
    rates, outputs = [], []
    for t in range(1, options.iterations + 1):
        rates.append(chains.step().mean())
        outputs.append(chains.target.outputs(chains.theta, data.x_test))
        if t % 250 == 0 or t == options.iterations:  # so that a run that is stopped leaves what it has
            draws = torch.stack(outputs, 1)
            known = {
                "chains": options.chains, "warm-up": options.warmup, "kept": t, "leapfrogs": options.leapfrogs,
                "acceptance": torch.stack(rates).mean().item(), "step size": chains.size.mean().item(),
                "largest split R-hat of predictions": hmc.split_r_hat(draws).max().item(),
                "smallest effective sample size": hmc.effective_size(draws).min().item(),
                "minutes": (time.perf_counter() - start) / 60,
            }  # fmt: skip
            if kept is not None:
                np.savez(kept, draws=draws.float().cpu().numpy(), known=json.dumps(known))
    return draws, known


# ── what is compared with it ─────────────────────────────────────────────────────────────────────────────────────────


def members(data: Data, seeds: range, same: bool = False) -> list[nn.Module]:
    models = []
    for seed in seeds:
        torch.manual_seed(seeds[0] if same else seed)
        models.append(networks.mlp([data.x.shape[1], HIDDEN, 1], nn.Tanh).double().to(data.x.device))
    return models


def losses(models: list[nn.Module], data: Data) -> Tensor:
    """Sum over networks of the mean negative log-likelihood."""
    return sum(0.5 * ((model(data.x).squeeze(-1) - data.y) ** 2).mean() / NOISE**2 for model in models)


def trained(
    optimizer: torch.optim.Optimizer,
    models: list[nn.Module],
    data: Data,
    steps: int,
    extra: Callable[[], Tensor] | None,
) -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = losses(models, data) if extra is None else losses(models, data) + extra()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
        schedule.step()


@torch.no_grad()
def draws_of(optimizer: IVON, models: list[nn.Module], data: Data, count: int) -> Tensor:
    found = []
    for _ in range(-(-count // len(models))):
        with optimizer.sampled_params():
            found += [model(data.x_test).squeeze(-1) for model in models]
    return torch.stack(found)


def predictions(name: str, data: Data, options: argparse.Namespace, count: int, seed: int) -> Tensor:
    """Draws (S, tests) of the test outputs."""
    first = seed * 100
    models = members(data, range(first, first + (1 if name == "IVON" else MEMBERS)), same="one start" in name)
    if name == "ensemble of points":
        optimizer = torch.optim.Adam([p for m in models for p in m.parameters()], lr=1e-2)

        def prior() -> Tensor:
            return sum(0.5 * (p**2).sum() for m in models for p in m.parameters()) / data.n

        trained(optimizer, models, data, options.steps, prior)
        with torch.no_grad():
            return torch.stack([model(data.x_test).squeeze(-1) for model in models])
    settings = {"ess": data.n, "hess_init": options.hess_init, "weight_decay": 1.0 / data.n, "seed": seed}
    settings |= {"betas": (0.9, 1 - 5 / options.steps), "mc_samples": options.mc_samples}
    if name.startswith("mixture"):
        optimizer = MixtureIVON(models, lr=options.lr, **settings)
        trained(optimizer, models, data, options.steps, optimizer.repulsion)
    else:
        optimizer = IVON([p for m in models for p in m.parameters()], lr=options.lr, **settings)
        trained(optimizer, models, data, options.steps, None)
    return draws_of(optimizer, models, data, count)


def distances(found: Tensor, exact: Tensor) -> dict[str, float]:
    """Overlap of intervals, total variation and Wasserstein-2 of predictive marginals, averaged over test points."""
    levels = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64, device=found.device)
    generator = torch.Generator(found.device).manual_seed(0)

    def targets(draws: Tensor) -> Tensor:
        repeated = draws.repeat(-(-20000 // len(draws)), 1)
        return repeated + NOISE * torch.randn(
            repeated.shape, generator=generator, device=draws.device, dtype=draws.dtype
        )

    ours, theirs = (torch.quantile(targets(d)[:20000], levels, dim=0) for d in (found, exact))
    low, high = 50, 949
    union = torch.maximum(ours[high], theirs[high]) - torch.minimum(ours[low], theirs[low])
    common = (torch.minimum(ours[high], theirs[high]) - torch.maximum(ours[low], theirs[low])).clamp(min=0)
    grid = torch.linspace(-4, 4, 801, dtype=torch.float64, device=found.device)

    def density(draws: Tensor) -> Tensor:
        some = draws[:: max(len(draws) // 1000, 1)]
        z = (grid[:, None, None] - some[None]) / NOISE
        return torch.exp(-0.5 * z**2).mean(1) / (NOISE * (2 * torch.pi) ** 0.5)

    variation = 0.5 * torch.trapezoid((density(found) - density(exact)).abs(), grid, dim=0)
    return {
        "overlap": (common / union).mean().item(),
        "total variation": variation.mean().item(),
        "Wasserstein-2": ((ours - theirs) ** 2).mean(0).sqrt().mean().item(),
    }


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    data = load(options)
    chains, known = exact_draws(data, options)
    half = len(chains) // 2
    exact, other = (part.flatten(0, 1) for part in (chains[:half], chains[half:]))
    keep = max(len(exact) // 4000, 1)
    exact, other = exact[::keep], other[::keep]
    used = {"split": options.split, "steps": options.steps, "lr": options.lr, "hess_init": options.hess_init}
    if ROWS[0] in options.rows:
        line = {"name": ROWS[0], "seed": 0, "known": known, "minutes": known["minutes"]}
        yield line | {"used": used, "scores": distances(other, exact)}
    for name in (row for row in options.rows if row != ROWS[0]):
        for seed in options.seeds:
            start = time.perf_counter()
            found = predictions(name, data, options, 1200, seed)
            minutes = (time.perf_counter() - start) / 60
            yield {"name": name, "seed": seed, "minutes": minutes, "used": used, "scores": distances(found, exact)}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    arguments.add_argument("--split", type=int, default=0)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--draws", help="file for HMC's predictions: written, or read if it is there")
    arguments.add_argument("--chains", type=int, default=16)
    arguments.add_argument("--leapfrogs", type=int, default=60)
    arguments.add_argument("--warmup", type=int, default=600)
    arguments.add_argument("--iterations", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=5000)
    arguments.add_argument("--lr", type=float, default=0.003)
    arguments.add_argument("--hess-init", type=float, default=3000.0)
    arguments.add_argument("--mc-samples", type=int, default=1)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    known = next(line["known"] for line in lines if "known" in line)
    rows = []
    for name in (row for row in ROWS if any(line["name"] == row for line in lines)):
        mine = [line for line in lines if line["name"] == name]
        cells = [report.spread([line["scores"][key] for line in mine]) for key in lines[0]["scores"]]
        rows.append([name, *cells, f"{sum(line['minutes'] for line in mine) / len(mine):.1f}"])
    facts = {
        "members": MEMBERS,
        "seeds": sorted({line["seed"] for line in lines}),
        "noise": NOISE,
        "prior_precision": 1,
    }
    facts |= lines[-1]["used"] | {"settings_of_IVON_chosen_on": "split 1, seed 10, a single IVON"}
    facts |= {"HMC": ", ".join(f"{key} {value:.4g}" for key, value in known.items())}
    text = report.header("UCI energy, one hidden layer of 50, against HMC", lines, **facts)
    report.publish(
        "uci_hmc", text + "\n" + report.table(["posterior", *lines[0]["scores"], "minutes"], rows), options.out
    )


if __name__ == "__main__":
    main()
