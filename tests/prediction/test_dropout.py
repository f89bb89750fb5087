"""Dropout as a posterior: masks by number, shared by all inputs, everything else evaluating."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from posterity.errors import InvalidInput
from posterity.posterior import Diagonal, Dropout, Posterior
from posterity.prediction import predict
from posterity.prediction._masks import masked
from posterity.trees import snapshot, trainable
from prediction.cases import make_case


def dropping(model, rates, likelihood="gaussian"):
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    return Posterior.of(model, Dropout(mean, rates), prior=prior, n=9, ess=9, likelihood=likelihood)


def test_every_draw_is_one_of_all_masks_and_each_has_its_probability():
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 1)).double()
    posterior = dropping(model, {"0": 0.3})
    x = torch.tensor([[1.0, 2.0, 4.0, 8.0]], dtype=torch.float64)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    outputs = model[1](x * masks / 0.7).detach().squeeze(-1)  # 16 networks
    p = predict(model, posterior, x, samples=4000)
    distance = (p.outputs.squeeze(-1) - outputs).abs()
    assert distance.min(1).values.max() < 1e-12
    found = np.bincount(distance.argmin(1), minlength=16) / 4000
    probability = (0.7 ** masks.sum(1) * 0.3 ** (4 - masks.sum(1))).numpy()
    assert (np.abs(found - probability) < 5 * np.sqrt(probability / 4000)).all()
    np.testing.assert_allclose(predict(model, posterior, x, samples=0).mean.squeeze(), model[1](x).item())


def test_a_draw_is_one_network_for_all_inputs():
    case = make_case("dropout")
    same = case.inputs[:1].repeat(9, 1)
    p = predict(case.model, case.posterior, same, samples=5, keep_samples=True)
    np.testing.assert_allclose(p.outputs, p.outputs[:, :1].expand_as(p.outputs))
    assert p.outputs[:, 0].std(0).min() > 0


def test_whole_channels_are_dropped_after_convolutions():
    model = nn.Sequential(nn.Conv2d(1, 40, 3), nn.Dropout2d(0.5), nn.Flatten())
    posterior = dropping(model, {"1": 0.5})
    p = predict(model, posterior, torch.rand(3, 1, 6, 6), samples=4)
    channels = p.outputs.reshape(4, 3, 40, 16)
    silent = (channels == 0).all(-1)
    assert ((channels == 0).any(-1) == silent).all()
    assert (silent == silent[:, :1]).all()
    assert 0.3 < silent.float().mean() < 0.7


def test_a_module_that_is_called_twice_gets_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.ones(1))

        def forward(self, x):
            return torch.stack((self.drop(x), self.drop(x)), 1) * self.scale

    model = Twice()
    p = predict(model, dropping(model, {"drop": 0.5}), torch.ones(1, 64), samples=1)
    first, second = p.outputs[0, 0]
    assert (first != second).float().mean() > 0.2


def test_hooks_and_modes_are_gone_afterwards():
    case = make_case("dropout")
    predict(*case, samples=2)
    assert not case.model[3]._forward_hooks
    assert case.model.training
    with pytest.raises(InvalidInput, match="expected what the model takes"):
        predict(case.model, case.posterior, torch.zeros(2, 9).double(), samples=2)
    assert not case.model[3]._forward_hooks
    assert case.model.training


def test_a_name_that_is_no_dropout_is_refused():
    model = nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(2, 1))
    with pytest.raises(InvalidInput, match=r"module '0': expected nn\.Dropout"), masked(model, {"0": 0.5}, 1):
        pass
