"""One warning, with its cure, where training diverges or options are hardly meant."""

import warnings

import pytest
import torch
from torch import nn

from posterity.optim import IVON, Variational
from posterity.optim._growth import EVERY, Growth


def weights(n=3):
    return nn.Parameter(torch.ones(n))


def descend(optimizer, weight, steps):
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            (2 * weight.square()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Variational(torch.optim.SGD([p], lr=2.0), n=100),  # steps of -1.67 times the weight, from 3 weights
        lambda p: IVON([p], lr=30.0, ess=1e4, betas=(0.0, 0.999)),
    ],
)
def test_a_run_that_diverges_warns_once(make):
    weight = weights()
    optimizer = make(weight)
    with pytest.warns(UserWarning, match="training diverges.* start again with a smaller lr") as said:
        descend(optimizer, weight, 4 * EVERY)
    assert len([w for w in said if "diverges" in str(w.message)]) == 1


def test_large_gradients_after_a_good_start_are_no_divergence():
    weight = weights()
    growth = Growth()
    for size in (1e-6, 1.0, 10.0, 10.0):
        weight.grad = torch.full((3,), size)
        for _ in range(EVERY):
            assert not growth.diverges([weight])


def test_a_linear_model_may_reach_large_weights():
    weight = weights()
    growth = Growth()
    for size in (1.0, 1e2, 1e4, 1e6):
        weight.data.fill_(size)
        weight.grad = torch.full((3,), 1 / size)
        for _ in range(EVERY):
            assert not growth.diverges([weight])


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"ess": 1e5, "weight_decay": 0.1}, "precision 10000.*not decoupled.*1e-4 or 1/ess"),
        ({"ess": 1e4, "weight_decay": 0.01}, "precision 100,"),
        ({"ess": 1e5, "hess_init": 1e-3, "clip_radius": 1e-3}, "no step longer than .* = 1e-07.*rescale_lr=False"),
    ],
)
def test_options_that_are_hardly_meant_warn_once(options, cure):
    with pytest.warns(UserWarning, match=cure) as said:
        IVON([{"params": [weights()]}, {"params": [weights()]}], lr=0.1, **options)
    assert len(said) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"ess": 100, "weight_decay": 0.01},  # the prior N(0, 1)
        {"ess": 1e6, "weight_decay": 1e-3},
        {"ess": 1e5, "hess_init": 1e-3, "clip_radius": 1e-3, "rescale_lr": False},
    ],
)
def test_options_that_may_be_meant_do_not(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IVON([weights()], lr=0.1, **options)
