"""Bad input gets an error that names what was expected and what came."""

import inspect
import math

import pytest
import torch
from torch import nn

from optim.conformance import all_optimizers
from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import EVON, IVON, OGN, SAM, SOBA, STE, VOGN, BayesBiNN, BayesianSAM, Vadam, VariationalNewton
from posterity.posterior import Diagonal, Full

WEIGHT = nn.Parameter(torch.zeros(2))
FAMILY = (IVON, EVON, VOGN, OGN, SOBA, Vadam, VariationalNewton, BayesianSAM, SAM, BayesBiNN, STE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, "Invalid learning rate: .*got -0.1"),
        ({"lr": math.nan}, "Invalid learning rate"),
        ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
        ({"ess": 0}, "ess: expected a positive finite number, got 0"),
        ({"ess": -3.0}, "ess: .*got -3.0"),
        ({"ess": math.inf}, "ess"),
        ({"ess": "10"}, "ess: expected a number, or 'auto', got '10'"),
        ({"seed": 1.5}, "seed: expected a whole number, got 1.5"),
        ({"betas": (0.9, 0.99, 0.5)}, "betas: expected two numbers"),
        ({"betas": 0.9}, "betas: expected two numbers, got 0.9"),
        ({"hess_init": 0.0}, "hess_init: .*got 0.0"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: .*got 1.0"),
        ({"betas": (0.9, 1.5)}, "Invalid beta parameter at index 1: .*got 1.5"),
        ({"betas": (0.9, "automatic")}, "index 1: .*'auto', got 'automatic'"),
        ({"betas": (0.9, "auto")}, 'total_steps, for beta2="auto": .*got None'),
        ({"weight_decay": -1.0}, "Invalid weight_decay value: .*got -1.0"),
        ({"clip_radius": 0.0}, "clip_radius: .*got 0.0"),
        ({"mc_samples": 0}, "mc_samples: .*got 0"),
        ({"hess_approx": "fisher"}, "hess_approx: expected 'price' or 'gradsq', got 'fisher'"),
        ({"hess_approx": "gradsq"}, 'batch_size, for "gradsq": .*got None'),
        ({"total_steps": -5}, "total_steps, .*got -5"),
        ({"debias": None}, "debias: expected True or False, got None"),
        ({"fused": "yes"}, "fused: expected True or False, got 'yes'"),
    ],
)
def test_hyperparameters(options, message):
    with pytest.raises(ValueError, match=message):
        IVON([WEIGHT], **{"lr": 0.1, "ess": 10, **options})


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", ["0.1", None, True, 1j, [0.1], torch.tensor([0.1, 0.2]), torch.tensor(0.1), math.nan])
def test_no_number_is_a_word_a_truth_value_or_a_tensor(kind, value):
    settings = inspect.signature(kind).parameters
    numbers = [name for name, setting in settings.items() if setting.annotation in ("float", "int", "float | Tensor")]
    assert {"lr"} <= set(numbers)
    for name in numbers:
        if name == "lr" and isinstance(value, torch.Tensor) and value.ndim == 0:
            continue
        given = {"lr": 0.1, **({"ess": 10} if "ess" in settings else {}), name: value}
        with pytest.raises(InvalidInput, match=f"{name}|learning rate|epsilon|beta parameter|Tensor lr"):
            kind([nn.Parameter(torch.zeros(2))], **given)


def test_a_bad_group_is_refused_and_not_added():
    optimizer = IVON([WEIGHT], lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="learning rate"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": -1.0})
    with pytest.raises(InvalidInput, match=r"real floating-point parameters, got torch\.complex64"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 1


def test_parameters():
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        IVON([], lr=0.1, ess=10)
    with pytest.raises(InvalidInput, match="real floating-point"):
        IVON([nn.Parameter(torch.zeros(2, dtype=torch.complex128))], lr=0.1, ess=10)


def test_sparse_gradients_are_refused_at_the_mean():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = IVON(model.parameters(), lr=0.1, ess=10)
    before = [p.detach().clone() for p in model.parameters()]
    with optimizer.sampled_params(train=True):
        model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InvalidInput, match="sparse"):
        optimizer.step()
    with pytest.raises(InvalidInput, match="sparse"), optimizer.sampled_params(train=True):
        pass
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert not optimizer.state


@all_optimizers
def test_sparse_gradients_are_refused_by_all(make):
    torch.manual_seed(0)
    layer = nn.Embedding(5, 3, sparse=True)
    optimizer = make(layer.parameters())
    before = layer.weight.detach().clone()
    with pytest.raises(InvalidInput, match="gradient: expected a dense tensor"):
        optimizer.step(lambda: layer(torch.tensor([1, 2])).sum().backward())
    assert torch.equal(layer.weight, before)


def test_priors():
    model = network()
    tree = {name: p.detach() for name, p in model.named_parameters()}
    prior = Diagonal.isotropic(tree, 1.0)
    with pytest.raises(InvalidInput, match="named parameters"):
        IVON(model.parameters(), lr=0.1, ess=10, prior=prior)
    with pytest.raises(InvalidInput, match=r"2\.bias"):
        IVON(model.named_parameters(), lr=0.1, ess=10, prior=prior.restrict(("0.weight", "0.bias", "2.weight")))
    wide = Diagonal.isotropic({**tree, "0.bias": torch.zeros(7)}, 1.0)
    with pytest.raises(InvalidInput, match="shape"):
        IVON(model.named_parameters(), lr=0.1, ess=10, prior=wide)
    with pytest.raises(InvalidInput, match="Diagonal"):
        IVON(model.named_parameters(), lr=0.1, ess=10, prior=Full({"w": torch.zeros(2)}, torch.eye(2)))


def test_posterior_of_another_model():
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=10, betas=(0.9, 0.1))
    optimizer.step(lambda: loss(model, *data()).backward())
    with pytest.raises(InvalidInput, match="trained parameters"):
        optimizer.posterior(network(), likelihood="categorical", n=32)


def test_all_parameters_frozen_in_mid_training():
    model = nn.Linear(2, 1)
    optimizer = IVON(model.parameters(), lr=0.1, ess=10)
    model.requires_grad_(False)
    with pytest.raises(InvalidInput, match="params: expected at least one that requires a gradient"):
        optimizer.diagnostics()
    with pytest.raises(InvalidInput, match="params: expected at least one that requires a gradient"):
        optimizer.posterior(model, likelihood="gaussian", n=10)


def test_posterior_with_several_ess():
    model = network()
    groups = [{"params": model[0].parameters(), "ess": 10}, {"params": model[2].parameters()}]
    optimizer = IVON(groups, lr=0.1, ess=20, betas=(0.9, 0.1))
    optimizer.step(lambda: loss(model, *data()).backward())
    with pytest.raises(InvalidInput, match="same for all parameter groups"):
        optimizer.posterior(model, likelihood="categorical", n=32)
