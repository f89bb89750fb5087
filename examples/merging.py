"""Merging: two networks that learnt different digits become one, by their weights alone."""

from __future__ import annotations

import copy

import torch
from common import digits, headline, record, save, size
from torch import nn

import posterity as po
from posterity.merging import merge_state_dicts
from posterity.plots.style import COLOURS, MUTED, panels


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    few = (x[:60], y[:60])
    po.fit(base, few, method="adamw", epochs=size(100, 2))
    start = po.laplace(base, few, structure="diag", prior_precision=1.0)
    tuned = {}
    for name, first in (("0 to 4", 0), ("5 to 9", 5)):
        mine = (y[60:1200] >= first) & (y[60:1200] < first + 5)
        model, data = copy.deepcopy(base), (x[60:1200][mine], y[60:1200][mine])
        po.fit(model, data, method="adamw", prior=0.0, epochs=size(15, 1))
        tuned[name] = po.laplace(model, data, structure="diag", prior_precision=1.0)

    def accuracy(weights: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            logits = torch.func.functional_call(base, weights, x[1200:])
        return 100 * (logits.argmax(1) == y[1200:]).double().mean().item()

    alphas = torch.linspace(0, 2, size(21, 3)).tolist()
    origin, means = start.mean, {name: q.mean for name, q in tuned.items()}
    curves = {"task arithmetic": [], "TIES": [], "gradient matching (posteriors)": []}
    for alpha in alphas:
        weights = dict.fromkeys(tuned, alpha)
        sums = merge_state_dicts(means, origin, method="task_arithmetic", weights=weights)
        curves["task arithmetic"].append(accuracy(sums))
        elected = {
            k: origin[k] + alpha * (v - origin[k]) for k, v in merge_state_dicts(means, origin, method="ties").items()
        }
        curves["TIES"].append(accuracy(elected))
        curves["gradient matching (posteriors)"].append(accuracy(po.merge(tuned, start, weights=weights).mean))
    figure, ((axis,),) = panels(width=7.4, height=4.4)
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axis.plot(alphas, values, "o-", color=colour, label=name, markersize=4)
    alone = [accuracy(q.mean) for q in tuned.values()]
    for value in alone:
        axis.axhline(value, color=MUTED, linestyle=":", linewidth=1.2)
    axis.text(0, min(alone) - 0.6, "each of the two alone", color=MUTED, va="top")
    axis.set(xlabel="weight α of each network", ylabel="accuracy on all ten digits (%)")
    axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.45, 0.16))
    axis.spines[["top", "right"]].set_visible(False)
    headline(figure, "Two networks, each with half of the digits, merged: weighted by curvature, α hardly matters")
    record("merging", weights=alphas, accuracy=curves, alone=alone)
    save(figure, "merging")


if __name__ == "__main__":
    main()
