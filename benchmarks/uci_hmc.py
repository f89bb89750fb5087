"""UCI energy, one hidden layer of 50: how near to a long run of HMC are IVON, ensembles and mixtures?

All share one posterior: tanh units, weights N(0, 1) a priori, targets with noise 0.1 in standardised units. HMC runs
many chains in float64, whose predictions are checked by split R-hat; its other half says how near two runs of HMC are.
The rest is trained on the whole data and predicts with 1200 draws. Compared are the predictive distributions of each
test target: overlap of 90 % intervals (intersection over union), total variation, Wasserstein-2 distance.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import datasets
import networks
import report
import torch
from torch import Tensor, nn

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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Data(*(t.to(device) for t in (x[train], y[train], x[test])))


# ── HMC ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Posterior:
    """U(θ) and its gradient for many weight vectors (C, D) at once, in closed form."""

    def __init__(self, data: Data) -> None:
        self.data, self.inputs = data, data.x.shape[1]
        self.sizes = [self.inputs * HIDDEN, HIDDEN, HIDDEN, 1]
        self.dimension = sum(self.sizes)

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (C, N), hidden units (C, N, H) and the weights that leave them."""
        first, bias, second, offset = theta.split(self.sizes, dim=-1)
        hidden = torch.tanh(torch.matmul(x, first.view(-1, self.inputs, HIDDEN)) + bias[:, None])
        return (hidden * second[:, None]).sum(-1) + offset, hidden, second

    def energy(self, theta: Tensor) -> Tensor:
        f, _, _ = self.forward(theta, self.data.x)
        return 0.5 * ((f - self.data.y) ** 2).sum(-1) / NOISE**2 + 0.5 * (theta**2).sum(-1)

    def gradient(self, theta: Tensor) -> Tensor:
        f, hidden, second = self.forward(theta, self.data.x)
        error = (f - self.data.y) / NOISE**2  # (C, N)
        inner = error[..., None] * second[:, None] * (1 - hidden**2)  # (C, N, H)
        parts = [
            torch.matmul(self.data.x.T, inner).flatten(1),
            inner.sum(1),
            torch.matmul(error[:, None], hidden)[:, 0],
            error.sum(-1, keepdim=True),
        ]
        return torch.cat(parts, -1) + theta


class Leapfrog:
    """A number of leapfrog steps, on a GPU captured once and replayed."""

    def __init__(self, posterior: Posterior, chains: int, steps: int, like: Tensor) -> None:
        self.posterior, self.steps = posterior, steps
        self.theta, self.momentum = (like.new_zeros(chains, posterior.dimension) for _ in range(2))
        self.size = like.new_full((), 1e-4)
        self.graph = torch.cuda.CUDAGraph() if like.is_cuda else None
        if self.graph is not None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._run()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                self._run()

    def _run(self) -> None:
        gradient = self.posterior.gradient(self.theta)
        for _ in range(self.steps):
            self.momentum.sub_(0.5 * self.size * gradient)
            self.theta.add_(self.size * self.momentum)
            gradient = self.posterior.gradient(self.theta)
            self.momentum.sub_(0.5 * self.size * gradient)

    def __call__(self, theta: Tensor, momentum: Tensor, size: float, times: int) -> tuple[Tensor, Tensor]:
        self.theta.copy_(theta)
        self.momentum.copy_(momentum)
        self.size.fill_(size)
        for _ in range(times):
            self._run() if self.graph is None else self.graph.replay()
        return self.theta.clone(), self.momentum.clone()


def hmc(data: Data, options: argparse.Namespace) -> tuple[Tensor, dict[str, float]]:
    """Test predictions (chains, kept, tests) of converged chains, and what is known about them."""
    torch.manual_seed(0)
    posterior, chains = Posterior(data), options.chains
    theta = 0.3 * torch.randn(chains, posterior.dimension, dtype=torch.float64, device=data.x.device)
    leap, times = Leapfrog(posterior, chains, 25, data.x), max(options.leapfrogs // 25, 1)
    size, accepted, predictions = 1e-3, [], []
    for t in range(options.warmup + options.iterations):
        momentum = torch.randn_like(theta)
        jitter = size * float(0.8 + 0.4 * torch.rand(()))
        proposal, final = leap(theta, momentum, jitter, times)
        change = posterior.energy(theta) - posterior.energy(proposal) + 0.5 * (momentum**2 - final**2).sum(-1)
        change = torch.nan_to_num(change, nan=-torch.inf)
        rate = change.exp().clamp(max=1.0)
        move = torch.rand_like(rate) < rate
        theta = torch.where(move[:, None], proposal, theta)
        if t < options.warmup:
            size *= float(torch.exp(0.3 / (1 + t / 100) ** 0.5 * (rate.mean() - 0.8)))
        else:
            accepted.append(rate.mean().item())
            predictions.append(posterior.forward(theta, data.x_test)[0])
    draws = torch.stack(predictions, 1)
    known = {"R-hat": r_hat(draws), "acceptance": sum(accepted) / len(accepted), "step size": size}
    return draws, known


def r_hat(draws: Tensor) -> float:
    """The largest split R-hat over test points, of draws (chains, kept, tests)."""
    half = draws.shape[1] // 2
    parts = torch.cat([draws[:, :half], draws[:, half : 2 * half]])
    within = parts.var(1).mean(0)
    between = half * parts.mean(1).var(0)
    return ((((half - 1) * within + between) / half) / within).sqrt().max().item()


# ── what is compared with it ─────────────────────────────────────────────────────────────────────────────────────────


def members(data: Data, seeds: range, same: bool = False) -> list[nn.Module]:
    models = []
    for seed in seeds:
        torch.manual_seed(0 if same else seed)
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
    start = time.perf_counter()
    chains, known = hmc(data, options)
    minutes = (time.perf_counter() - start) / 60
    half = len(chains) // 2
    exact, other = (part.flatten(0, 1) for part in (chains[:half], chains[half:]))
    keep = max(len(exact) // 4000, 1)
    exact, other = exact[::keep], other[::keep]
    yield {"name": "HMC, other half", "seed": 0, "known": known, "minutes": minutes, "scores": distances(other, exact)}
    for name in ROWS[1:]:
        for seed in options.seeds:
            start = time.perf_counter()
            found = predictions(name, data, options, 1200, seed)
            minutes = (time.perf_counter() - start) / 60
            yield {"name": name, "seed": seed, "minutes": minutes, "scores": distances(found, exact)}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--split", type=int, default=0)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--chains", type=int, default=64)
    arguments.add_argument("--leapfrogs", type=int, default=500)
    arguments.add_argument("--warmup", type=int, default=500)
    arguments.add_argument("--iterations", type=int, default=1000)
    arguments.add_argument("--steps", type=int, default=5000)
    arguments.add_argument("--lr", type=float, default=0.01)
    arguments.add_argument("--hess-init", type=float, default=100.0)
    arguments.add_argument("--mc-samples", type=int, default=1)
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    known = lines[0]["known"]
    rows = []
    for name in dict.fromkeys(line["name"] for line in lines):
        mine = [line for line in lines if line["name"] == name]
        cells = [report.spread([line["scores"][key] for line in mine]) for key in lines[0]["scores"]]
        rows.append([name, *cells, f"{sum(line['minutes'] for line in mine) / len(mine):.1f}"])
    facts = {"members": MEMBERS, "seeds": options.seeds, "noise": NOISE, "prior_precision": 1}
    facts |= {"HMC": ", ".join(f"{key} {value:.4g}" for key, value in known.items())}
    text = report.header("UCI energy, one hidden layer of 50, against HMC", lines, **facts)
    report.publish(
        "uci_hmc", text + "\n" + report.table(["posterior", *lines[0]["scores"], "minutes"], rows), options.out
    )


if __name__ == "__main__":
    main()
