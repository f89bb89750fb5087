"""When to stop: leave-one-out, from the training data alone, where held-out data would stop.

A small network learns digits of which a tenth have wrong labels, and begins to learn them by heart. Leave-one-out
formulas are about optima; t steps of gradient descent have the effect of a prior around the start, of precision
N/(lr · t), and with it the estimate holds during training. `benchmarks/generalisation.py` has more networks and
optimizers, and where it fails.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import digits, headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.batches import batches
from posterity.memory import leave_one_out
from posterity.plots.style import BLUE, GREEN, MUTED, panels

Data = tuple[Tensor, Tensor]
LR, MOMENTUM, PRIOR, BATCH = 0.1, 0.9, 1.0, 50
LOOKS = (1, 2, 5, 10, 15, 20, 25, 30, 40, 60, 100)


def flipped(y: Tensor, seed: int) -> Tensor:
    """A tenth of the labels replaced by others."""
    g = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=g) < 0.1
    return torch.where(wrong, (y + torch.randint(1, 10, y.shape, generator=g)) % 10, y)


def nll(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return F.cross_entropy(model(data[0]), data[1]).item()


def curves(train: Data, test: Data, looks: tuple[int, ...], seed: int) -> dict[str, list[float]]:
    """Mean losses after some epochs of gradient descent with momentum."""
    torch.manual_seed(seed)
    model, n = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10)), len(train[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=PRIOR / n)
    stream = batches(train, batch_size=BATCH, shuffle=True, seed=seed)
    found: dict[str, list[float]] = {"training": [], "leave-one-out": [], "held out": []}
    for epoch in range(1, max(looks) + 1):
        for batch in stream.epoch(epoch - 1):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.inputs), batch.targets).backward()
            optimizer.step()
        if epoch in looks:
            start = n * (1 - MOMENTUM) / (LR * epoch * len(stream))  # precision of the prior that the steps so far are
            posterior = po.laplace(model, train, structure=size("full", "diag"), prior_precision=PRIOR + start)
            found["training"].append(nll(model, train))
            found["leave-one-out"].append(leave_one_out(model, posterior, train).nll.mean().item())
            found["held out"].append(nll(model, test))
    return found


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    looks, seeds = LOOKS[: size(len(LOOKS), 2)], range(10, size(13, 11))
    figure, (axes,) = panels(1, len(seeds), width=4.6, height=4.6, sharey=True)
    costs: dict[str, list[float]] = {"training": [], "leave-one-out": []}
    for axis, seed in zip(axes, seeds, strict=True):
        half = size(1000, 100)
        found = curves((x[:half], flipped(y[:half], seed)), (x[1000:], flipped(y[1000:], seed + 1)), looks, seed)
        held = found["held out"]
        for (label, values), colour in zip(found.items(), (MUTED, BLUE, GREEN), strict=True):
            axis.plot(looks, values, "o-", color=colour, linewidth=2.2, markersize=4, label=label)
            stop = values.index(min(values))
            axis.plot(looks[stop], held[stop], "D", color=colour, markersize=11, markeredgecolor="white", zorder=4)
            if label in costs:
                costs[label].append(held[stop] / min(held) - 1)
        axis.set(title=f"seed {seed}", xlabel="epoch", xscale="log", ylim=(0, 1.7))
        axis.set_xticks([1, 5, 20, 100], ["1", "5", "20", "100"])
        axis.minorticks_off()
        axis.grid(True, color="#E3E3E3")
    axes[0].set_ylabel("mean NLL (nats)")
    axes[0].legend(frameon=False)
    worst, by_training = max(costs["leave-one-out"]), max(costs["training"])
    headline(
        figure,
        f"When to stop (diamonds): leave-one-out, from the training data alone, costs at most {worst:.0%} of the best "
        f"held-out loss; the training loss never stops, which costs up to {by_training:.0%}",
    )
    record("early_stopping", cost_of_stopping=costs)
    save(figure, "early_stopping")


if __name__ == "__main__":
    main()
