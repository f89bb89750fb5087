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
    posterior = Laplace(model, kind, subset, hessian, prior_precision=prior_precision, backend=CurvlinopsGGN, **noise)
    posterior.fit(DataLoader(TensorDataset(x, y), batch_size=10))  # 10, 10 and 3: unequal batches must not matter
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
    reference = {
        "precision_diagonal": _rounded(precision.diagonal()),
        "precision_times_probes": _rounded(precision @ probes),
        "log_marginal_likelihood": {str(d): _rounded(evidence(torch.tensor(d).log().item())) for d in PRIOR_PRECISIONS},
        "best_prior_precision": _rounded(float(torch.tensor(best.x).exp())),
        "predictive_mean": _rounded(mean),
        "predictive_covariance": _rounded(covariance),
    }
    if SUBSETS[structure][0] == "all":  # the peer has no layerwise prior on a last layer
        layers = torch.arange(1, len(list(problem[0].parameters())) + 1)
        reference["layerwise"] = _rounded(posterior.log_marginal_likelihood(0.1 * layers).item())
    return reference


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


def _images(model: nn.Module, n: int, n_test: int) -> Problem:
    x = torch.randn(n + n_test, 1, 28, 28, generator=_generator(0))
    return model, x[:n], torch.arange(n) % 10, x[n:], "classification"


def _many_classes(n: int, n_test: int, classes: int = 1000) -> Problem:
    x = torch.randn(n + n_test, 64, generator=_generator(0))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, classes))
    return model, x[:n], torch.arange(n) % classes, x[n:], "classification"


def _cost_problem(name: str) -> Problem:
    import networks

    torch.manual_seed(0)
    if name == "784-500-300-10":
        return _images(nn.Sequential(nn.Flatten(), networks.mlp([784, 500, 300, 10])), 256, 64)
    if name == "LeNet":
        return _images(networks.lenet(), 64, 16)
    return _many_classes(256, 4)


COSTS = [("784-500-300-10", "diag"), ("784-500-300-10", "kron"), ("784-500-300-10", "last_layer_kron"),
         ("LeNet", "diag"), ("LeNet", "kron"), ("1000 classes", "last_layer_kron")]  # fmt: skip


def _fit_and_predict_posterity(problem: Problem, structure: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    from posterity.curvature import prediction_covariance
    from posterity.learning import laplace

    model, x, y, x_test, _ = problem
    last = structure.startswith("last_layer")
    options = {"structure": "last_layer", "inner": "kron"} if last else {"structure": structure}
    return (
        lambda: laplace(model, (x, y), **options),
        lambda posterior: prediction_covariance(model, x_test, posterior.covariance()),
    )


def _fit_and_predict_peer(
    problem: Problem, structure: str, backend: str
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    from laplace import Laplace, curvature

    model, x, y, x_test, kind = problem
    loader = DataLoader(TensorDataset(x, y), batch_size=64)

    def fit() -> Any:
        posterior = Laplace(model, kind, *SUBSETS[structure], backend=getattr(curvature, backend))
        posterior.fit(loader)
        posterior.optimize_prior_precision(method="marglik")
        return posterior

    return fit, lambda posterior: posterior._glm_predictive_distribution(x_test)[1]


def measure(library: str, problem_name: str, structure: str) -> None:
    """CPU seconds of one fit (with its prior precision) and of the predictive covariance, and peak memory."""
    torch.set_num_threads(1)
    problem = _cost_problem(problem_name)
    if library == "posterity":
        fit, predict = _fit_and_predict_posterity(problem, structure)
    else:
        fit, predict = _fit_and_predict_peer(problem, structure, library)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    posterior = fit()
    fitted = time.process_time()
    covariance = predict(posterior)
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figures = {
        "fit": 1e3 * (fitted - start) / len(problem[1]),
        "predict": 1e3 * (done - fitted) / len(problem[3]),
        "memory": peak / 1024,
        "deviation": covariance.diagonal(dim1=-2, dim2=-1).mean().sqrt().item(),
    }
    print(json.dumps(figures))


def _measured(library: str, problem: str, structure: str) -> dict[str, float] | None:
    """One measurement in a process of its own, so that peak memory is its own too; None where the library fails."""
    command = [sys.executable, __file__, "measure", library, problem, structure]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        print(f"{library}, {problem}, {structure}: {finished.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


def cost(out: str | None) -> None:
    import importlib.metadata as metadata

    import report

    libraries = {"posterity": "posterity", "CurvlinopsGGN": "laplace-torch", "BackPackGGN": "laplace-torch, BackPACK"}
    rows = []
    for problem, structure in COSTS:
        for key, name in libraries.items():
            found = _measured(key, problem, structure)
            cells = ["fails"] * 3 if found is None else [_three_digits(found[f]) for f in ("fit", "predict", "memory")]
            rows.append([problem, structure.replace("_", " "), name, *cells])
    peers = ", ".join(f"{p} {metadata.version(p)}" for p in ("laplace-torch", "curvlinops-for-pytorch"))
    head = report.header("Laplace beside laplace-torch", peers=peers, measured="process CPU time, one thread, seed 0")
    columns = ["model", "structure", "library", "fit, ms/example", "covariance, ms/example", "peak memory, MiB"]
    report.publish("laplace_peers", head + "\n" + report.table(columns, rows), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fixture", help="write the reference values of laplace-torch for the tests")
    costs = commands.add_parser("cost", help="measure both libraries")
    costs.add_argument("--out", help="folder for the table")
    single = commands.add_parser("measure", help="measure one fit (called by `cost`)")
    for argument in ("library", "problem", "structure"):
        single.add_argument(argument)
    given = parser.parse_args()
    if given.command == "fixture":
        write_fixture(FIXTURE)
    elif given.command == "cost":
        cost(given.out)
    else:
        measure(given.library, given.problem, given.structure)
