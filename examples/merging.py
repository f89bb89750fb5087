"""Merging: two networks that learnt different digits become one, by their weights alone."""

from __future__ import annotations

import copy

import torch
from common import digits, save, size
from torch import nn

import posterity as po
from posterity.merging import merge_state_dicts
from posterity.plots.style import COLOURS, MUTED, panels


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    start = po.fit(base, (x[:150], y[:150]), method="ivon", epochs=size(120, 2))
    halves = {"0 to 4": slice(0, 5), "5 to 9": slice(5, 10)}
    tuned = {}
    for name, half in halves.items():
        mine = (y[150:1200] >= half.start) & (y[150:1200] < half.stop)
        model = copy.deepcopy(base)
        data = (x[150:1200][mine], y[150:1200][mine])
        tuned[name] = po.fit(model, data, method="ivon", prior=start.posterior, epochs=size(40, 1)).posterior

    def accuracy(weights: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            logits = torch.func.functional_call(base, weights, x[1200:])
        return 100 * (logits.argmax(1) == y[1200:]).double().mean().item()

    alphas = torch.linspace(0, 1.5, size(16, 3)).tolist()
    origin, means = start.posterior.mean, {name: q.mean for name, q in tuned.items()}
    curves = {"task arithmetic": [], "TIES": [], "gradient matching (posteriors)": []}
    for alpha in alphas:
        weights = dict.fromkeys(tuned, alpha)
        sums = merge_state_dicts(means, origin, method="task_arithmetic", weights=weights)
        curves["task arithmetic"].append(accuracy(sums))
        elected = {
            k: origin[k] + alpha * (v - origin[k]) for k, v in merge_state_dicts(means, origin, method="ties").items()
        }
        curves["TIES"].append(accuracy(elected))
        curves["gradient matching (posteriors)"].append(
            accuracy(po.merge(tuned, start.posterior, weights=weights).mean)
        )
    figure, ((axis,),) = panels(width=7.4, height=4.4)
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axis.plot(alphas, values, "o-", color=colour, label=name, markersize=4)
    for name, q in tuned.items():
        axis.axhline(accuracy(q.mean), color=MUTED, linestyle=":", linewidth=1.2)
        axis.text(1.5, accuracy(q.mean) + 0.4, f"trained on {name} alone", ha="right", color=MUTED, fontsize=9)
    axis.set(xlabel="weight α of each network", ylabel="accuracy on all ten digits (%)")
    axis.legend(frameon=False, loc="lower center")
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Two networks, fine-tuned on half of the digits each, merged without data (α = 0 is their base)")
    save(figure, "merging")


if __name__ == "__main__":
    main()
