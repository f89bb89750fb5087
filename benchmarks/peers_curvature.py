"""Write what curvlinops says about small networks to a file that the tests compare with.

Runs where curvlinops is installed and needs no posterity (see `laplace_peers.py` for how to install the peers):

    python benchmarks/peers_curvature.py tests/curvature/curvlinops.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Pooled(nn.Module):
    """A linear layer at every step of a sequence, then the mean over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.out = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.step(x)).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, 2)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (2,)),
    "convolution": (convolution, (1, 4, 4)),
    "sequence": (Pooled, (3, 2)),
}
LOSSES = {"categorical": nn.CrossEntropyLoss(reduction="sum"), "gaussian": nn.MSELoss(reduction="sum")}
N = 5


def case(network: str, law: str) -> dict[str, Any]:
    from curvlinops import GGNLinearOperator, KFACLinearOperator

    torch.manual_seed(0)
    make, shape = NETWORKS[network]
    model = make().double()
    x = torch.randn(N, *shape, dtype=torch.float64)
    y = torch.randint(0, 2, (N,)) if law == "categorical" else torch.randn(N, 2, dtype=torch.float64)
    parameters = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    arguments = (model, LOSSES[law], parameters, [(x, y)])
    eye = torch.eye(size, dtype=torch.float64)
    probe = torch.linspace(-1, 1, size, dtype=torch.float64)
    found: dict[str, Any] = {"ggn_times_probe": (GGNLinearOperator(*arguments) @ probe).tolist()}
    for sharing in ("expand", "reduce"):
        dense = KFACLinearOperator(*arguments, fisher_type="type-2", kfac_approx=sharing) @ eye
        found[sharing] = blocks(dense, [p.numel() for p in parameters])
    return {
        "network": network,
        "likelihood": law,
        "parameters": {name: p.detach().tolist() for name, p in model.named_parameters()},
        "inputs": x.tolist(),
        "targets": y.tolist(),
        **{name: rounded(value) for name, value in found.items()},
    }


def blocks(matrix: Tensor, sizes: list[int]) -> list[list[list[float]]]:
    """The blocks on the diagonal."""
    rows = matrix.split(sizes)
    return [row.split(sizes, dim=1)[i].tolist() for i, row in enumerate(rows)]


def rounded(value: Any) -> Any:
    return [rounded(v) for v in value] if isinstance(value, list) else float(f"{value:.12g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    cases = [case(network, law) for network in NETWORKS for law in LOSSES]
    options.out.write_text(json.dumps(cases), encoding="utf-8")


if __name__ == "__main__":
    main()
