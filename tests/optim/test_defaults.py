"""The numbers that users get without asking: papers and published scripts rely on them."""

import inspect
import math

import pytest

from posterity import optim

FIRST = {"hess_init": 1.0, "weight_decay": 1e-4}
DEFAULTS = {
    "IVON": {**FIRST, "betas": (0.9, 0.99999), "clip_radius": math.inf, "debias": True, "rescale_lr": True},
    "EVON": {**FIRST, "betas": (0.9, 0.9999), "basis_beta": 0.995, "refresh": 10},
    "SOBA": {**FIRST, "rho": 0.01, "momentum": 0.0},
    "VariationalNewton": {**FIRST, "rho": 0.01, "beta1": 0.9},
    "VOGN": {**FIRST, "betas": (0.9, 0.999), "damping": 0.0},
    "OGN": {**FIRST, "betas": (0.9, 0.999), "damping": 0.0},
    "Vadam": {"lr": 1e-3, "hess_init": 0.01, "betas": (0.9, 0.999), "weight_decay": 1e-4, "eps": 1e-8},
    "BayesianSAM": {**FIRST, "rho": 0.01, "betas": (0.9, 0.999), "damping": 0.1},
    "SAM": {"rho": 0.05, "momentum": 0.9, "weight_decay": 0.0},
    "BayesBiNN": {"temperature": 1e-10, "natural_init": 10.0, "beta": 0.99},
    "STE": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "latent_init": 0.01},
    "Variational": {"total_steps": None, "batch_size": None, "budget": None},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    given = {key: p.default for key, p in inspect.signature(getattr(optim, name)).parameters.items()}
    assert {key: given[key] for key in DEFAULTS[name]} == DEFAULTS[name]
    for key, usual in {"mc_samples": 1, "seed": 0, "prior": None}.items():
        assert given.get(key, usual) == usual
