"""What the classical models cost beside scikit-learn and filterpy, each pair measured in one run."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from filterpy.kalman import KalmanFilter
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture

from posterity.algorithms import LinearStateSpace
from posterity.families import Dirichlet, NormalWishart
from posterity.graph import Mixture, Model, Topics, filter_states, gaussian, svi_step, vmp


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs: what the work costs when nothing else is in the way."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
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
    model = Model(prior, [Mixture("weights", "components", gaussian(torch.as_tensor(X)))])
    # Both evaluate the bound in every sweep; ours once more at the end, which is counted.
    ours = seconds(lambda: vmp(model, start, steps=3, tolerance=0.0), repeats) / 3.0
    theirs.max_iter = 3
    return ours, seconds(lambda: theirs.fit(X), repeats) / 3.0


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


def kalman(steps: int, repeats: int) -> tuple[float, float]:
    """Filter a sequence with four states and two observations."""
    rng, one = np.random.default_rng(0), torch.eye(4, dtype=torch.float64)
    seen = rng.normal(size=(steps, 2))
    model = LinearStateSpace(0.9 * one, 0.1 * one, one[:2], one[:2, :2], 0.0 * one[0], one)

    def theirs() -> None:
        other = KalmanFilter(dim_x=4, dim_z=2)
        other.F, other.Q, other.H, other.R = 0.9 * np.eye(4), 0.1 * np.eye(4), np.eye(4)[:2], np.eye(2)
        other.batch_filter(seen[..., None])

    return seconds(lambda: filter_states(model, torch.as_tensor(seen)), repeats), seconds(theirs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one repeat")
    quick = parser.parse_args().quick
    part, repeats = (10, 1) if quick else (1, 3)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [
        (f"Gaussian mixture, a VB sweep, N={100_000 // part:,}, D=16, K=20", "BayesianGaussianMixture",
         mixture(100_000 // part, 16, 20, repeats)),
        (f"LDA, an online step, {1000 // part} documents, 2000 words, K=20", "LatentDirichletAllocation",
         topics(1000 // part, 2000, 20, repeats)),
        (f"Kalman filter, T={100_000 // part:,}, 4 states", "filterpy", kalman(100_000 // part, repeats)),
    ]  # fmt: skip
    print("| work | posterity | peer | peer / posterity |\n|---|---|---|---|")
    for name, peer, (ours, theirs) in rows:
        print(f"| {name} | {ours:.3g} s | {peer} {theirs:.3g} s | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
