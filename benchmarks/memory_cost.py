"""What the memory of a model costs: curvature, V and V e for each example, in units of a training forward+backward.

A perceptron 784-500-300-10 (or a ResNet-20) on random inputs; on a CPU one thread and CPU time, on a GPU wall-clock
time, the smallest of several alternating runs. With POSTERITY_LAPLACE_PYTHON naming an interpreter that has
laplace-torch, its functional variances (the same V) are measured beside, on fewer examples.
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

import networks

NETWORKS = {"mlp": (lambda: networks.mlp([784, 500, 300, 10]), (784,)), "resnet20": (networks.ResNet20, (3, 32, 32))}
BARS = {"V, diagonal": 5.0, "V, Kronecker": 12.0, "V e, diagonal": 2.5, "V e, Kronecker": 4.0}
UNIT = "training forward+backward"

Problem = tuple[nn.Module, Tensor, Tensor]  # model, inputs, labels
Questions = dict[str, Callable[[], object]]


def problem(network: str, n: int, device: str) -> Problem:
    torch.manual_seed(0)
    make, shape = NETWORKS[network]
    return make().to(device).eval(), torch.randn(n, *shape, device=device), torch.randint(0, 10, (n,), device=device)


def fastest(runs: int, questions: Questions) -> dict[str, float]:
    """Smallest seconds of each question, in alternating runs so that a busy machine hits all alike."""
    best = dict.fromkeys(questions, float("inf"))
    for _ in range(runs + 1):
        for name, question in questions.items():
            start = _clock()
            question()
            best[name] = min(best[name], _clock() - start)
    return best


def _clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def training(setting: Problem, batch_size: int) -> None:
    model, x, y = setting
    for inputs, targets in zip(x.split(batch_size), y.split(batch_size)):
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()


def ours(setting: Problem, batch_size: int) -> Questions:
    from posterity import curvature as c
    from posterity.batches import batches
    from posterity.likelihoods import likelihood

    model, x, y = setting
    law, data = likelihood("categorical"), batches((x, y), batch_size=batch_size)
    few = batches((x[:batch_size], y[:batch_size]))
    diagonal = c.DiagonalCovariance({name: 1 / (h + 1) for name, h in c.diagonal_ggn(model, few, law).items()})
    bases, variance = {}, {}
    for name, factors in c.kronecker_ggn(model, few, law).items():
        values, vectors = zip(*map(torch.linalg.eigh, factors))
        bases[name] = vectors
        variance[name] = 1 / (torch.outer(*values) if len(values) == 2 else values[0]).add(1)
    kronecker = c.KroneckerCovariance(bases, variance)
    with torch.no_grad():
        e = torch.cat([law.residual(model(a), b) for a, b in zip(x.split(batch_size), y.split(batch_size))])
    parts = list(zip(x.split(batch_size), e.split(batch_size)))

    questions: Questions = {
        "diagonal GGN, fit": lambda: c.diagonal_ggn(model, data, law),
        "diagonal Fisher with one drawn label, fit": lambda: c.diagonal_fisher(model, data, law, "sampled"),
        "Kronecker GGN, fit": lambda: c.kronecker_ggn(model, data, law),
        "squared gradients": lambda: c.per_example_squared_gradients(model, data, law),
    }
    for shape, covariance in (("diagonal", diagonal), ("Kronecker", kronecker)):
        questions |= {
            f"V, {shape}": lambda s=covariance: [c.prediction_covariance(model, a, s) for a, _ in parts],
            f"V e, {shape}": lambda s=covariance: [c.prediction_covariance_product(model, a, s, b) for a, b in parts],
            f"eᵀV e, {shape}": lambda s=covariance: [c.self_influence(model, a, s, b) for a, b in parts],
        }
    return questions


def peer(setting: Problem) -> dict[str, float]:
    """Seconds an example that laplace-torch takes for its functional variances."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    model, x, y = setting
    found = {}
    for structure, label in (("diag", "diagonal"), ("kron", "Kronecker")):
        la = Laplace(model, "classification", subset_of_weights="all", hessian_structure=structure)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=100))
        start = _clock()
        for part in x.split(10):
            la._glm_predictive_distribution(part)
        found[f"V, {label}"] = (_clock() - start) / len(x)
    return found


def peer_elsewhere(network: str) -> dict[str, float]:
    python = os.environ.get("POSTERITY_LAPLACE_PYTHON")
    if not python:
        return {}
    command = [python, str(Path(__file__)), "--peer", "--examples", "100", "--network", network]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("laplace-torch: " + done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="mlp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = problem(options.network, options.examples, options.device)
    if options.peer:
        print(json.dumps(peer(setting)))
        return
    import report

    questions: Questions = {UNIT: lambda: training(setting, options.batch_size)}
    times = fastest(options.runs, questions | ours(setting, options.batch_size))
    unit, peers = times[UNIT], peer_elsewhere(options.network)
    bars = BARS if (options.network, options.device) == ("mlp", "cpu") else {}
    rows = [
        [
            name,
            f"{1e6 * t / options.examples:.1f}",
            f"{t / unit:.2f}",
            bars.get(name, ""),
            f"{peers[name] * options.examples / unit:.0f}" if name in peers else "",
        ]
        for name, t in times.items()
    ]
    title = f"Cost of memory, {options.network}"
    text = report.header(title, examples=options.examples, batch=options.batch_size, runs=options.runs) + "\n"
    columns = ["operation", "µs an example", "× forward+backward", "at most", "laplace-torch ×"]
    report.publish(f"memory_cost_{options.network}", text + report.table(columns, rows), options.out)
    late = [name for name, bar in bars.items() if times[name] > bar * unit]
    sys.exit(f"over the bar: {late}" if late else 0)


if __name__ == "__main__":
    main()
