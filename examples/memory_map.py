"""The memory map: every training image by what it decides and by how wrong the model is about it."""

from __future__ import annotations

import torch
from common import digits, headline, record, save, size
from torch import nn

import posterity as po


def main() -> None:
    torch.set_num_threads(1)
    x, y = digits()
    x, y = x[: size(1300, 200)], y[: size(1300, 200)].clone()
    wrong = len(y) // 10
    y[:wrong] = (y[:wrong] + 3) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    po.fit(model, (x, y), method="adamw", epochs=size(40, 1), lr=5e-3)
    posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
    m = po.memory_map(model, posterior, (x, y))
    found = (m.top(wrong)["id"] < wrong).mean()
    figure = po.plots.memory_map(m)
    headline(figure, f"Digits, a tenth with wrong labels: {found:.0%} of the first {wrong} suspects have one")
    record("memory_map", share_of_wrong_labels_among_the_first=found)
    save(figure, "memory_map")


if __name__ == "__main__":
    main()
