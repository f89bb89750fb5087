"""What the classical models cost beside scikit-learn, bayespy and filterpy, each pair measured in one run.

    python benchmarks/models_cost.py --bayespy ENVIRONMENT/bin/python

Seconds are processor time on one thread, the least of several runs. bayespy has an environment of its own; its mixture
keeps means and precisions apart, q(m) q(Λ), where ours and scikit-learn's have q(m, Λ), and gets a tenth of the rows,
so as to fit into memory.
"""

from __future__ import annotations

import argparse
import subprocess
import time
import warnings
from collections.abc import Callable

import numpy as np
import report
import torch
from filterpy.kalman import KalmanFilter
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture

from posterity.algorithms import LinearStateSpace
from posterity.families import Dirichlet, NormalWishart
from posterity.graph import MixtureFactor, Model, Topics, filter_states, gaussian, svi_step, vmp


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs: what the work costs when nothing else is in the way."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def mixture(n: int, d: int, k: int, repeats: int) -> tuple[float, float]:
    """One sweep of variational Bayes from the same state."""
    rng = np.random.default_rng(0)
    X = 3.0 * rng.normal(size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))
    theirs = BayesianGaussianMixture(
        n_components=k, weight_concentration_prior_type="dirichlet_distribution", warm_start=True, max_iter=1, tol=0,
        init_params="random_from_data", random_state=0,
    ).fit(X)  # fmt: skip
    scales = np.linalg.inv(theirs.covariances_ * theirs.degrees_of_freedom_[:, None, None])
    start = {
        "weights": Dirichlet(theirs.weight_concentration_.copy()),
        "components": NormalWishart(theirs.means_, theirs.mean_precision_, theirs.degrees_of_freedom_, scales),
    }
    prior = {
        "weights": Dirichlet(np.full(k, 1.0 / k)),
        "components": NormalWishart(np.tile(X.mean(0), (k, 1)), 1.0, float(d), np.linalg.inv(np.cov(X.T))),
    }
    model = Model(prior, [MixtureFactor("weights", "components", gaussian(torch.as_tensor(X)))])
    # Both evaluate the bound in every sweep; ours once more at the end, which is counted.
    ours = seconds(lambda: vmp(model, start, steps=3, tolerance=0.0), repeats) / 3.0
    theirs.max_iter = 3
    return ours, seconds(lambda: theirs.fit(X), repeats) / 3.0


BAYESPY = """
import sys, time, warnings
import numpy as np
from bayespy.inference import VB
from bayespy.nodes import Categorical, Dirichlet, Gaussian, Mixture, Wishart
warnings.simplefilter("ignore")
n, d, k, repeats = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
X = 3.0 * rng.normal(size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))
weights = Dirichlet(np.full(k, 1.0 / k))
labels = Categorical(weights, plates=(n,))
means, precisions = Gaussian(np.zeros(d), np.eye(d), plates=(k,)), Wishart(d, np.eye(d), plates=(k,))
seen = Mixture(labels, Gaussian, means, precisions)
labels.initialize_from_random()
seen.observe(X)
inference = VB(seen, means, precisions, labels, weights)
inference.update(repeat=1, verbose=False, tol=-1)
times = []
for _ in range(repeats):
    begin = time.process_time()
    inference.update(repeat=1, verbose=False, tol=-1)
    times.append(time.process_time() - begin)
print(min(times))
"""


def bayespy_mixture(python: str, n: int, d: int, k: int, repeats: int) -> float:
    """One sweep of bayespy's mixture, in its own environment."""
    command = [python, "-c", BAYESPY, *map(str, (n, d, k, repeats))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def topics(documents: int, words: int, k: int, repeats: int) -> tuple[float, float]:
    """One online step on a minibatch of sparse counts, with 50 updates of every document on both sides."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.05, size=(documents, words)).astype(float)
    theirs = LatentDirichletAllocation(k, mean_change_tol=0.0, max_doc_update_iter=50, batch_size=documents)
    theirs.partial_fit(counts)
    q = {"topics": Dirichlet(theirs.components_.copy())}
    model = Model(
        {"topics": Dirichlet(np.full((k, words), 1.0 / k))},
        [Topics("proportions", "topics", torch.as_tensor(counts))],
        local={"proportions": Dirichlet(np.full(k, 1.0 / k))},
    )
    ours = seconds(lambda: svi_step(model, q, 0.5, n=documents, local_steps=50, local_tolerance=0.0), repeats)
    return ours, seconds(lambda: theirs.partial_fit(counts), repeats)


def kalman(steps: int, repeats: int, missing: float = 0.0) -> tuple[float, float]:
    """Filter a sequence with four states and two observations, a share of whose rows is missing."""
    rng, one = np.random.default_rng(0), torch.eye(4, dtype=torch.float64)
    seen = rng.normal(size=(steps, 2))
    gone = rng.random(steps) < missing
    model = LinearStateSpace(0.9 * one, 0.1 * one, one[:2], one[:2, :2], 0.0 * one[0], one)
    rows = torch.as_tensor(np.where(gone[:, None], np.nan, seen))
    given = [None if absent else row for absent, row in zip(gone, seen[..., None], strict=True)]

    def theirs() -> None:
        other = KalmanFilter(dim_x=4, dim_z=2)
        other.F, other.Q, other.H, other.R = 0.9 * np.eye(4), 0.1 * np.eye(4), np.eye(4)[:2], np.eye(2)
        other.batch_filter(given)

    return seconds(lambda: filter_states(model, rows), repeats), seconds(theirs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one repeat")
    parser.add_argument("--bayespy", metavar="PYTHON", help="python of an environment with bayespy")
    parser.add_argument("--out", help="folder for the finished table")
    options = parser.parse_args()
    part, repeats = (10, 1) if options.quick else (1, 3)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    n = 100_000 // part
    found = mixture(n, 16, 20, repeats)
    rows = [(f"Gaussian mixture, a VB sweep, N={n:,}, D=16, K=20", "scikit-learn", *found)]
    if options.bayespy:
        ours, _ = mixture(n // 10, 16, 20, repeats)
        theirs = bayespy_mixture(options.bayespy, n // 10, 16, 20, repeats)
        rows.append((f"Gaussian mixture, a VB sweep, N={n // 10:,}, D=16, K=20", "bayespy", ours, theirs))
    name = f"LDA, an online step, {1000 // part} documents, 2000 words, K=20"
    rows.append((name, "scikit-learn", *topics(1000 // part, 2000, 20, repeats)))
    rows.append((f"Kalman filter, T={n:,}, 4 states", "filterpy", *kalman(n, repeats)))
    name = f"Kalman filter, T={n // 5:,}, 4 states, a tenth of the rows missing"
    rows.append((name, "filterpy", *kalman(n // 5, repeats, 0.1)))
    cells = [(name, peer, f"{ours:.3g}", f"{theirs:.3g}", f"{theirs / ours:.2f}") for name, peer, ours, theirs in rows]
    columns = ["work", "peer", "posterity, s", "peer, s", "peer / posterity"]
    text = report.header("Cost of the classical models") + "\n" + report.table(columns, cells)
    report.publish("models_cost", text, options.out)


if __name__ == "__main__":
    main()
