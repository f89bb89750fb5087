"""What the code around an optimizer does to it: scalers, schedulers, averages, copies, freezing, conversions."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from optim.conformance import CASES, all_optimizers, at_the_mean
from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import BayesBiNN, VariationalNewton

pytestmark = [at_the_mean, pytest.mark.filterwarnings("ignore:.*of the Hessian has been learnt")]


def train(model, optimizer, steps=2, scheduler=None):
    def closure():
        optimizer.zero_grad()
        inputs, targets = data()
        value = nn.functional.cross_entropy(model(inputs.to(next(model.parameters()).dtype)).float(), targets)
        value.backward()
        return value

    for _ in range(steps):
        value = optimizer.step(closure)
        if scheduler is not None:
            scheduler.step(*([value.detach()] if isinstance(scheduler, ReduceLROnPlateau) else []))


def equal(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def finite(model):
    return all(bool(p.isfinite().all()) for p in model.parameters())


@all_optimizers
def test_a_scaler_and_clipping_change_nothing_but_the_length(make):
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = network()
        optimizer = make(model.parameters())
        scaled = (lambda value: value) if scaler is None else scaler.scale
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                scaled(loss(model, *data())).backward()
            if hasattr(optimizer, "perturbed_params"):
                with optimizer.perturbed_params(scaler):
                    scaled(loss(model, *data())).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


@all_optimizers
def test_schedulers_that_look_into_the_groups(make):
    model = network()
    optimizer = make(model.parameters())
    steady = isinstance(optimizer, BayesBiNN) or make is CASES["Variational, signs"]  # without a momentum by that name
    turns = {"cycle_momentum": not steady}
    for scheduler in (
        OneCycleLR(optimizer, 0.1, total_steps=4, **turns),
        CyclicLR(optimizer, 1e-3, 0.1, **turns),
        ReduceLROnPlateau(optimizer),
        SWALR(optimizer, 0.05),
    ):
        train(model, optimizer, steps=3, scheduler=scheduler)
        assert finite(model)


@all_optimizers
def test_averages_of_weights_average_the_mean(make):
    model = network()
    optimizer = make(model.parameters())
    averages = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0))
    seen = []
    for _ in range(3):
        train(model, optimizer, steps=1)
        seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        for average in averages:
            average.update_parameters(model)
    equally, last = (nn.utils.parameters_to_vector(average.parameters()) for average in averages)
    torch.testing.assert_close(equally, torch.stack(seen).mean(0))
    torch.testing.assert_close(last, seen[-1])


@all_optimizers
def test_copies_of_model_and_optimizer_go_on_alike(make):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    other, its = copy.deepcopy((model, optimizer))
    train(model, optimizer)
    train(other, its)
    assert equal(model, other)


@all_optimizers
def test_frozen_tied_and_unused_weights_and_numbers(make):
    model = network()
    model[0].weight.requires_grad_(False)
    model.unused, model.number = nn.Parameter(torch.ones(2)), nn.Parameter(torch.tensor(0.5))
    model[0].again = model[0].bias
    optimizer = make(model.parameters())
    before = model[0].weight.detach().clone()
    train(model, optimizer)
    with optimizer.sampled_params():
        assert torch.equal(model[0].weight, before)
    assert torch.equal(model[0].weight, before)
    optimizer.posterior(model, likelihood="categorical", n=32).check(model)
    if not isinstance(optimizer, VariationalNewton):  # whose weights share one precision
        model[0].weight.requires_grad_(True)
        train(model, optimizer)
        assert finite(model)
        assert model[0].weight in optimizer.state


@all_optimizers
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_models_are_converted_after_their_optimizer_was_made(make, dtype):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    if isinstance(optimizer, BayesBiNN) and dtype is torch.float16:  # which its gradients do not fit
        with pytest.raises(InvalidInput, match="float16"):
            train(model.half(), optimizer)
        return
    for to in (dtype, torch.float32):
        train(model.to(to), optimizer)
        assert finite(model)
        assert all(t.dtype != torch.float16 for state in optimizer.state.values() for t in state.values())
