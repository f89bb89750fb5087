"""What the memory of a model costs: curvature, V and V e for each example, in units of a training forward+backward.

A perceptron 784-500-300-10 on random inputs, one thread, one process, CPU time, the smallest of several alternating
runs. With POSTERITY_LAPLACE_PYTHON naming an interpreter that has laplace-torch, its functional variances (the same
V) are measured beside, on fewer examples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BARS = {"V, diagonal": 5.0, "V, Kronecker": 12.0, "V e, diagonal": 2.5, "V e, Kronecker": 4.0}


def problem(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 300), nn.ReLU(), nn.Linear(300, 10))
    return model, torch.randn(n, 784), torch.randint(0, 10, (n,))


def fastest(runs: int, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Smallest CPU seconds of each function, in alternating runs so that a busy machine hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(runs + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - start)
    return best


def training(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> None:
    for inputs, targets in zip(x.split(batch_size), y.split(batch_size)):
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()


def ours(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> dict[str, Callable[[], object]]:
    from posterity import curvature as c
    from posterity.batches import batches
    from posterity.likelihoods import likelihood

    law = likelihood("categorical")
    data = batches((x, y), batch_size=batch_size)
    n, delta = len(x), 1.0
    diagonal = c.DiagonalCovariance({name: 1 / (h + delta) for name, h in c.diagonal_ggn(model, data, law).items()})
    bases, variance = {}, {}
    for name, factors in c.kronecker_ggn(model, data, law).items():
        pairs = [torch.linalg.eigh(factor) for factor in factors]
        bases[name] = tuple(vectors for _, vectors in pairs)
        values = pairs[0][0] if len(pairs) == 1 else torch.outer(pairs[0][0], pairs[1][0])
        variance[name] = 1 / (values + delta)
    kronecker = c.KroneckerCovariance(bases, variance)
    e = law.residual(model(x).detach(), y)

    def by_batch(question: Callable[..., Tensor], covariance: c.Covariance, with_e: bool) -> Callable[[], object]:
        parts = list(zip(x.split(batch_size), e.split(batch_size)))
        return lambda: [question(model, a, covariance, *([b] if with_e else [])) for a, b in parts]

    questions = {
        "diagonal GGN, fit": lambda: c.diagonal_ggn(model, data, law),
        "diagonal Fisher, one drawn label, fit": lambda: c.diagonal_fisher(model, data, law, "sampled"),
        "Kronecker GGN, fit": lambda: c.kronecker_ggn(model, data, law),
        "squared gradients": lambda: c.per_example_squared_gradients(model, data, law),
    }
    for shape, covariance in (("diagonal", diagonal), ("Kronecker", kronecker)):
        questions[f"V, {shape}"] = by_batch(c.prediction_covariance, covariance, False)
        questions[f"V e, {shape}"] = by_batch(c.prediction_covariance_product, covariance, True)
        questions[f"eᵀV e, {shape}"] = by_batch(c.self_influence, covariance, True)
    assert n == sum(map(len, x.split(batch_size)))
    return questions


def peer(examples: int, batch_size: int) -> None:
    """Functional variances of laplace-torch, printed as JSON: runs in the other interpreter."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model, x, y = problem(examples)
    unit = fastest(3, {"unit": lambda: training(model, x, y, batch_size)})["unit"]
    found = {}
    for structure, label in (("diag", "diagonal"), ("kron", "Kronecker")):
        la = Laplace(model, "classification", subset_of_weights="all", hessian_structure=structure)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=batch_size))
        start = time.process_time()
        for part in x.split(10):
            la._glm_predictive_distribution(part)
        found[f"V, {label}"] = (time.process_time() - start) / unit
    import laplace

    print(json.dumps({"version": getattr(laplace, "__version__", "0.3"), "times": found}))


def peer_times(examples: int, batch_size: int) -> dict[str, float]:
    python = os.environ.get("POSTERITY_LAPLACE_PYTHON")
    if not python:
        return {}
    command = [python, str(Path(__file__)), "--peer", "--examples", str(examples), "--batch-size", str(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("laplace-torch: " + done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])["times"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.peer:
        peer(options.examples, options.batch_size)
        return
    import report

    torch.set_num_threads(1)
    model, x, y = problem(options.examples)
    functions = {"training forward+backward": lambda: training(model, x, y, options.batch_size)}
    functions |= ours(model, x, y, options.batch_size)
    times = fastest(options.runs, functions)
    unit = times["training forward+backward"]
    peers = peer_times(100, options.batch_size)
    rows = [
        [name, f"{1e6 * t / options.examples:.1f}", f"{t / unit:.2f}", BARS.get(name, ""), _round(peers.get(name))]
        for name, t in times.items()
    ]
    text = report.header("Cost of memory, MLP 784-500-300-10", examples=options.examples, batch=options.batch_size)
    columns = ["operation", "µs an example", "× forward+backward", "at most", "laplace-torch ×"]
    report.publish("memory_cost", text + "\n" + report.table(columns, rows), options.out)
    late = [name for name, bar in BARS.items() if times[name] / unit > bar]
    sys.exit(f"over the bar: {late}" if late else 0)


def _round(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    main()
