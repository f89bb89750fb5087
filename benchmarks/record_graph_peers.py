"""Record small cases of bayespy and hmmlearn for the table.

    ENVIRONMENT/bin/python benchmarks/record_graph_peers.py > src/posterity/table/comparisons/peers.json

The environment needs bayespy and hmmlearn, nothing of this project.
"""

import argparse
import json
import warnings

import numpy as np


def regression():
    """bayespy: y = Xw + noise, q(w) q(α) q(τ) with a precision α for each weight, at rest."""
    from bayespy.inference import VB
    from bayespy.nodes import Gamma, GaussianARD, SumMultiply

    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 3))
    y = X @ np.array([1.0, -2.0, 0.0]) + 0.5 * rng.normal(size=25)
    alpha = Gamma(0.1, 0.2, plates=(3,))
    w = GaussianARD(0, alpha, shape=(3,))
    tau = Gamma(0.3, 0.4)
    seen = GaussianARD(SumMultiply("i,i", w, X), tau)
    seen.observe(y)
    inference = VB(seen, w, alpha, tau, tol=-1)
    inference.update(repeat=3000, verbose=False)
    mean, second = w.get_moments()
    return {
        "X": X.tolist(),
        "y": y.tolist(),
        "mean": mean.tolist(),
        "covariance": (second - np.outer(mean, mean)).tolist(),
        "alpha": np.asarray(alpha.get_moments()[0]).tolist(),
        "tau": float(tau.get_moments()[0]),
        "bound": float(inference.L[inference.iter - 1]),
    }


def chain():
    """hmmlearn: one Baum-Welch step of a Gaussian hidden Markov model, two sequences, no priors."""
    from hmmlearn.hmm import GaussianHMM

    rng = np.random.default_rng(1)
    X, lengths = rng.normal(size=(20, 2)) + np.repeat([[0.0], [2.0]], 10, 0), [12, 8]
    start = {
        "startprob": [0.6, 0.4],
        "transmat": [[0.7, 0.3], [0.2, 0.8]],
        "means": [[0.0, 0.5], [1.5, 2.0]],
        "covars": [[[1.0, 0.2], [0.2, 1.0]], [[0.8, 0.0], [0.0, 1.2]]],
    }
    model = GaussianHMM(
        2, covariance_type="full", n_iter=1, init_params="", tol=0.0,
        min_covar=0.0, means_weight=0.0, covars_prior=0.0, covars_weight=0.0,
    )  # fmt: skip
    for name, value in start.items():
        setattr(model, f"{name}_", np.array(value))
    likelihood = model.score(X, lengths)
    model.fit(X, lengths)
    found = {name: np.asarray(getattr(model, f"{name}_")).tolist() for name in start}
    return {"X": X.tolist(), "lengths": lengths, "start": start, "found": found, "log_likelihood": float(likelihood)}


def main():
    shown = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=shown).parse_args()
    import bayespy
    import hmmlearn

    warnings.simplefilter("ignore")
    versions = {"bayespy": bayespy.__version__, "hmmlearn": hmmlearn.__version__}
    print(json.dumps({"versions": versions, "regression": regression(), "chain": chain()}))


if __name__ == "__main__":
    main()
