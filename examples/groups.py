"""Removing a group: when the estimate by one Newton step holds, and when to measure instead.

Digits by softmax regression at its optimum. Random groups, parts of a class and whole classes are removed. The change
of the held-out loss is estimated by the memory-perturbation equation alone, then with further passes over the data, as
`what_if` does by default, and both are compared with training again.
"""

from __future__ import annotations

import torch
from common import digits, headline, record, save, size
from torch import Tensor, nn

import posterity as po
from posterity.plots.style import BLUE, GREEN, MUTED, ORANGE, panels

PRECISION = 1.0
KINDS = {"random examples": MUTED, "part of a class": BLUE, "a whole class": ORANGE}


def optimum(x: Tensor, y: Tensor) -> nn.Module:
    """Softmax regression at the optimum of Σ ℓ + ½ δ‖θ‖²."""
    model = nn.Linear(64, 10).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    descent = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-7, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        descent.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        loss = loss + 0.5 * PRECISION * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    descent.step(objective)
    return model


def groups(y: Tensor) -> list[tuple[str, list[int]]]:
    """Kind and ids of what is removed."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for count in (3, 10, 30, 100):
        for _ in range(size(5, 1)):
            found.append(("random examples", torch.randperm(len(y), generator=generator)[:count].tolist()))
    for label in range(size(10, 2)):
        members = (y == label).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=generator)]
        for share in (0.1, 0.5):
            found.append(("part of a class", members[: max(int(share * len(members)), 1)].tolist()))
        found.append(("a whole class", members.tolist()))
    return found


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x = x.double()
    train, test = (x[: size(1000, 300)], y[: size(1000, 300)]), (x[1000:], y[1000:])
    model = optimum(*train)

    def held_out(m: nn.Module) -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(m(test[0]), test[1]).item()

    posterior = po.laplace(model, train, structure="full", prior_precision=PRECISION)
    memory = po.memory_map(model, posterior, train)
    rows = []
    for kind, ids in groups(train[1]):
        kept = torch.ones(len(train[1]), dtype=torch.bool)
        kept[ids] = False
        true = held_out(optimum(train[0][kept], train[1][kept])) - held_out(model)
        found = [memory.what_if(remove=ids, passes=passes).on(test) for passes in (0, 200)]
        rows.append((kind, true, *(o.loss_change for o in found)))
    draw(rows)


def draw(rows: list[tuple[str, float, float, float]]) -> None:
    figure, (axes,) = panels(1, 2, width=5.6, height=4.6, sharey=True)
    titles = ("One Newton step, in milliseconds", "With passes over the data (`what_if`)")
    for axis, title, column in zip(axes, titles, (2, 3), strict=True):
        for kind, colour in KINDS.items():
            mine = [row for row in rows if row[0] == kind]
            axis.plot([row[1] for row in mine], [row[column] for row in mine], "o", color=colour, label=kind, alpha=0.8)
        ends = [-1e-3, 2.0]
        axis.plot(ends, ends, color=GREEN, linewidth=1)
        axis.set_xscale("symlog", linthresh=1e-4)
        axis.set_yscale("symlog", linthresh=1e-4)
        axis.set(title=title, xlabel="change of the held-out loss, retrained")
    axes[0].set(ylabel="estimated")
    axes[0].legend(frameon=False)
    ratios = {kind: [[row[column] / row[1] for row in rows if row[0] == kind] for column in (2, 3)] for kind in KINDS}
    record("groups", **{kind: {"one step": one, "passes": more} for kind, (one, more) in ratios.items()})
    worst = 1 / min(ratios["a whole class"][0])
    headline(
        figure,
        "Removing a group: one step is right for small groups and up to "
        f"{worst:.0f} times too small for a class; passes over the data correct it",
    )
    save(figure, "groups")


if __name__ == "__main__":
    main()
