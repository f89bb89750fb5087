"""laplace-torch beside `posterity.laplace`: `fixture` writes what the tests compare with, `cost` measures both.

`fixture` runs where laplace-torch (with curvlinops) is installed and needs no posterity; `cost` needs both. Install
the peer in an environment of its own: torch first, then laplace-torch, curvlinops-for-pytorch, backpack-for-pytorch,
asdfghjkl==0.1a4, torchmetrics, lightning-utilities, packaging, tqdm, scipy, opt-einsum, einops, einconv,
linear-operator, unfoldNd and jaxtyping with --no-deps, because they ask for a torchvision that breaks others.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXTURE = Path(__file__).parent.parent / "tests" / "learning" / "fixtures" / "laplace_torch.json"

Problem = tuple[nn.Module, Tensor, Tensor, Tensor, str]  # model, inputs, targets, test inputs, kind


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp_classification() -> Problem:
    """A perceptron 3-4-3 with 23 examples of three classes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.randn(28, 3, generator=_generator(2))
    return model, x[:23], x[:23].argmax(-1), x[23:], "classification"


def mlp_regression() -> Problem:
    """A perceptron 2-5-2 with 23 examples of two outputs; the last layer has no bias."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))
    x = torch.randn(28, 2, generator=_generator(4))
    y = torch.stack([x.sin().sum(-1), x[:, 0] * x[:, 1]], -1)
    return model, x[:23], y[:23], x[23:], "regression"


def conv_classification() -> Problem:
    """Two convolutions (padded; strided) and a linear layer on 23 images of 6 x 6 pixels."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 2, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    x = torch.randn(28, 1, 6, 6, generator=_generator(6))
    return model, x[:23], x[:23].mean((1, 2)).argmax(-1) // 2, x[23:], "classification"


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mlp_classification": mlp_classification,
    "mlp_regression": mlp_regression,
    "conv_classification": conv_classification,
}
SUBSETS = {"diag": ("all", "diag"), "kron": ("all", "kron"), "full": ("all", "full"),
           "last_layer_diag": ("last_layer", "diag"), "last_layer_kron": ("last_layer", "kron"),
           "last_layer_full": ("last_layer", "full")}  # fmt: skip
PRIOR_PRECISIONS = (0.01, 0.3, 10.0)
NOISE_PRECISION = 4.0


def _rounded(value: Tensor | float) -> Any:
    """Numbers with 12 significant digits, so that the file stays small and exact enough for 1e-9."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().tolist()
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _peer(problem: Problem, structure: str, prior_precision: float) -> Any:
    from laplace import Laplace
    from laplace.curvature import CurvlinopsGGN

    model, x, y, _, kind = problem
    subset, hessian = SUBSETS[structure]
    noise = {"sigma_noise": NOISE_PRECISION**-0.5} if kind == "regression" else {}
    posterior = Laplace(
        model, kind, subset, hessian, prior_precision=prior_precision, backend=CurvlinopsGGN, **noise
    )
    posterior.fit(DataLoader(TensorDataset(x, y), batch_size=10))
    return posterior


def _reference(problem: Problem, structure: str) -> dict[str, Any]:
    """What laplace-torch says of one model: precision, evidence and linearised predictive."""
    from scipy.optimize import minimize_scalar

    posterior = _peer(problem, structure, PRIOR_PRECISIONS[1])
    precision = posterior.posterior_precision
    if hasattr(precision, "to_matrix"):
        precision = precision.to_matrix()
    elif precision.ndim == 1:
        precision = precision.diag()
    mean, covariance = posterior._glm_predictive_distribution(problem[3])

    def evidence(log_delta: float) -> float:
        return posterior.log_marginal_likelihood(torch.tensor(log_delta).exp()).item()

    best = minimize_scalar(lambda t: -evidence(t), bounds=(-15, 15), method="bounded", options={"xatol": 1e-11})
    probes = torch.eye(len(precision))[:, :1] + torch.linspace(-1, 1, 2 * len(precision)).reshape(-1, 2)
    return {
        "precision_diagonal": _rounded(precision.diagonal()),
        "precision_times_probes": _rounded(precision @ probes),
        "log_marginal_likelihood": {str(d): _rounded(evidence(torch.tensor(d).log().item())) for d in PRIOR_PRECISIONS},
        "best_prior_precision": _rounded(float(torch.tensor(best.x).exp())),
        "predictive_mean": _rounded(mean),
        "predictive_covariance": _rounded(covariance),
    }


def write_fixture(path: Path) -> None:
    import importlib.metadata as metadata

    torch.set_default_dtype(torch.float64)
    peers = ("laplace-torch", "curvlinops-for-pytorch", "torch")
    record: dict[str, Any] = {
        "versions": {name: metadata.version(name) for name in peers},
        "prior_precision": PRIOR_PRECISIONS[1],
        "noise_precision": NOISE_PRECISION,
        "problems": {},
    }
    for name, build in PROBLEMS.items():
        model, x, y, x_test, kind = problem = build()
        record["problems"][name] = {
            "kind": kind,
            "weights": {k: _rounded(v) for k, v in model.state_dict().items()},
            "inputs": _rounded(x), "targets": _rounded(y), "test_inputs": _rounded(x_test),
        }  # fmt: skip
        # The peer must see exactly the rounded numbers that the tests will read.
        stored = record["problems"][name]
        model.load_state_dict({k: torch.tensor(v) for k, v in stored["weights"].items()})
        problem = (model, torch.tensor(stored["inputs"]), torch.tensor(stored["targets"]),
                   torch.tensor(stored["test_inputs"]), kind)  # fmt: skip
        stored["structures"] = {structure: _reference(problem, structure) for structure in SUBSETS}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, {record['versions']}")


if __name__ == "__main__":
    write_fixture(FIXTURE)
