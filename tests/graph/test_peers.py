"""Message passing beside bayespy and hmmlearn, whose answers `benchmarks/record_graph_peers.py` recorded."""

import json
from pathlib import Path

import numpy as np
import torch

from posterity.families import Dirichlet, Gamma, Gaussian, NormalWishart
from posterity.graph import Chain, Linear, Model, Shrinkage, em, gaussian, vmp

RECORDED = json.loads((Path(__file__).parent / "peers.json").read_text())


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_regression_rests_where_bayespy_does():
    case = RECORDED["regression"]
    prior = {"w": None, "alpha": Gamma(tensor([0.1] * 3), tensor([0.2] * 3)), "noise": Gamma(0.3, 0.4)}
    factors = [Linear("w", "noise", tensor(case["X"]), tensor(case["y"])), Shrinkage("w", "alpha")]
    fit = vmp(Model(prior, factors), {"w": Gaussian.standard(3)}, steps=5000, tolerance=1e-13)
    q = fit.q
    torch.testing.assert_close(q["w"].mean, tensor(case["mean"]), rtol=0, atol=1e-9)
    torch.testing.assert_close(q["w"].covariance, tensor(case["covariance"]), rtol=0, atol=1e-9)
    torch.testing.assert_close(q["alpha"].mean, tensor(case["alpha"]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q["noise"].mean, tensor(case["tau"]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fit.bounds[-1], case["bound"], rtol=1e-10)


def test_one_baum_welch_step_is_that_of_hmmlearn():
    case = RECORDED["chain"]
    begin, found = case["start"], {name: tensor(value) for name, value in case["found"].items()}
    precision = torch.linalg.inv(tensor(begin["covars"]))
    degrees = 3.0  # the mode of a Wishart in two dimensions is (degrees − 2) times its scale, for a strength of one
    start = {
        "initial": Dirichlet(1.0 + tensor(begin["startprob"])),
        "moves": Dirichlet(1.0 + tensor(begin["transmat"])),
        "components": NormalWishart(tensor(begin["means"]), 1.0, degrees, precision),
    }
    emission = gaussian(tensor(case["X"]))
    model = Model(dict.fromkeys(start, None), [Chain("initial", "moves", "components", emission, case["lengths"])])
    fit = em(model, start, steps=1, tolerance=0.0)
    np.testing.assert_allclose(fit.bounds[0], case["log_likelihood"], rtol=1e-12)
    torch.testing.assert_close(fit.q["initial"].expectation[0].exp(), found["startprob"], rtol=0, atol=1e-12)
    torch.testing.assert_close(fit.q["moves"].expectation[0].exp(), found["transmat"], rtol=0, atol=1e-12)
    torch.testing.assert_close(fit.q["components"].family.location, found["means"], rtol=0, atol=1e-12)
    covariance = torch.linalg.inv(fit.q["components"].expectation[1])
    torch.testing.assert_close(covariance, found["covars"], rtol=0, atol=1e-12)
