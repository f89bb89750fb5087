"""Message passing beside bayespy and hmmlearn, whose answers `benchmarks/record_graph_peers.py` recorded."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from posterity.families import Dirichlet, Gamma, Gaussian, NormalWishart
from posterity.graph import Chain, LinearFactor, Model, Shrinkage, em, gaussian, vmp
from posterity.table.comparisons._data import furthest


def _recorded(case: str) -> dict[str, Any]:
    return json.loads((resources.files(__package__) / "peers.json").read_text(encoding="utf-8"))[case]


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def bayespy_regression() -> float:
    """y ~ N(Xw, 1/τ), w_i ~ N(0, 1/α_i): moments of q(w) q(α) q(τ) and the bound, at rest."""
    theirs = _recorded("regression")
    prior = {"w": None, "alpha": Gamma(_tensor([0.1] * 3), _tensor([0.2] * 3)), "noise": Gamma(0.3, 0.4)}
    model = Model(
        prior, [LinearFactor("w", "noise", _tensor(theirs["X"]), _tensor(theirs["y"])), Shrinkage("w", "alpha")]
    )
    fit = vmp(model, {"w": Gaussian.standard(3)}, steps=5000, tolerance=1e-13)
    ours = {
        "mean": fit.q["w"].mean,
        "covariance": fit.q["w"].covariance,
        "alpha": fit.q["alpha"].mean,
        "tau": fit.q["noise"].mean,
        "bound": fit.bounds[-1],
    }
    return furthest(*((value, theirs[name]) for name, value in ours.items()))


def hmmlearn_chain() -> float:
    """One step of Baum-Welch on two sequences: first states, moves, means, covariances and the log-likelihood."""
    theirs = _recorded("chain")
    begin = {name: _tensor(value) for name, value in theirs["start"].items()}
    degrees = 3.0  # the mode of a Wishart in two dimensions is (degrees − 2) times its scale, for a strength of one
    start = {
        "initial": Dirichlet(1.0 + begin["startprob"]),
        "moves": Dirichlet(1.0 + begin["transmat"]),
        "components": NormalWishart(begin["means"], 1.0, degrees, torch.linalg.inv(begin["covars"])),
    }
    chain = Chain("initial", "moves", "components", gaussian(_tensor(theirs["X"])), theirs["lengths"])
    fit = em(Model(dict.fromkeys(start, None), [chain]), start, steps=1, tolerance=0.0)
    ours = {
        "startprob": fit.q["initial"].expectation[0].exp(),
        "transmat": fit.q["moves"].expectation[0].exp(),
        "means": fit.q["components"].family.location,
        "covars": torch.linalg.inv(fit.q["components"].expectation[1]),
    }
    pairs = [(value, theirs["found"][name]) for name, value in ours.items()]
    return furthest(*pairs, (fit.bounds[0], theirs["log_likelihood"]))
