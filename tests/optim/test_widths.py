"""The widths of `Variational`: of weights that no gradient reaches, of zeros, and beside normalisations."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW

from optim.test_variational import logistic, train
from posterity.optim import Variational


def test_an_unseen_token_is_as_wide_as_its_table_allows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(4, 2))
    optimizer = Variational(AdamW(model.parameters()), n=100, batch_size=10, total_steps=100)
    for _ in range(60):
        tokens = torch.randint(0, 5, (10, 1))  # never token 5
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(tokens), tokens.squeeze(1) % 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="categorical")
    sigma = posterior.variance["0.weight"].sqrt()
    scale = model[0].weight.square().mean().sqrt().item() * math.sqrt(posterior.temperature)
    torch.testing.assert_close(sigma[5], torch.full((4,), scale), rtol=0.2, atol=0)
    assert (sigma[:5].mean() < sigma[5].mean()).item()


@pytest.mark.parametrize("base", [AdamW, SGD])
def test_a_padding_row_and_pruned_weights_stay_zero(base):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    mask = torch.ones(2, 12)
    mask[:, 3] = 0  # as a mask of pruned weights does
    model[2].weight.data.mul_(mask)
    model[2].weight.register_hook(mask.mul)
    optimizer = Variational(base(model.parameters(), lr=0.01), n=100, batch_size=10, total_steps=100)
    for _ in range(60):
        tokens = torch.randint(0, 5, (10, 3))  # never token 5
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(tokens), tokens[:, 0] % 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="categorical")
    table, weight = (posterior.variance[name].sqrt() for name in ("0.weight", "2.weight"))
    assert (table[0] < 1.1e-3 * table[5]).all()  # which no gradient reached either, but which has a value
    assert (weight[:, 3] < 0.02 * weight[:, :3].min()).all()
    kl = optimizer.diagnostics().kl
    assert 0 < kl < math.inf


@pytest.mark.parametrize("size", [10, 100], ids=["squares", "Price"])
def test_weights_that_are_zero_have_noise_where_gradients_come(size):
    """The last layer begins at zero and stays there, at a learning rate of 0."""
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    nn.init.zeros_(model.weight[:, :3])
    optimizer = Variational(SGD(model.parameters(), lr=0.0), n=100, batch_size=size, total_steps=100)
    x, y = logistic(100, 5)
    for _ in range(60):
        rows = torch.randperm(100)[:size]
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[rows].float()), y[rows].long()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.meter.by_price == (size == 100)
    assert (model.weight[:, :3] == 0).all()
    if size == 100:  # an estimate that is negative just now
        optimizer.state[model.weight]["hessian"][:, :3] = -1.0
    sigma = optimizer.posterior(model, likelihood="categorical").variance["weight"].sqrt()
    assert (sigma[:, :3] > 0.1 * sigma[:, 3:].max()).all()


def test_noise_begins_behind_the_last_batch_normalisation():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    )
    optimizer = Variational(AdamW(model.parameters()), n=400, batch_size=40, total_steps=60)
    x, y = logistic(400, 5)
    train(model, optimizer, F.cross_entropy, x.float(), y.long(), 40, 60)
    sigma = {name: v.sqrt() for name, v in optimizer.posterior(model, likelihood="categorical").variance.items()}
    scale = {name: p.detach().square().mean().clamp_min(1e-4).sqrt() for name, p in model.named_parameters()}
    wide = {name for name in sigma if (sigma[name].max() > 0.01 * scale[name]).item()}
    assert wide == {"4.weight", "4.bias", "6.weight", "6.bias"}


def test_other_normalisations_leave_noise_everywhere():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2)
    )
    optimizer = Variational(AdamW(model.parameters()), n=400, batch_size=40, total_steps=60)
    x, y = logistic(400, 5)
    train(model, optimizer, F.cross_entropy, x.float(), y.long(), 40, 60)
    assert not optimizer.normalised
