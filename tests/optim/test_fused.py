"""The optimizer's arithmetic compiled into one pass: the same numbers, the mean bit for bit."""

import copy

import pytest
import torch
from torch import nn

from posterity.optim import IVON

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def step(weights, optimizer, number):
    before = [w.detach().clone() for w in weights]
    with optimizer.sampled_params(train=True):
        sum(((w - number) ** 2).mean() + w.sin().sum() / 50 for w in weights).backward()
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))
    optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
    optimizer.step()
    optimizer.zero_grad()


def test_fused_equals_eager_and_is_compiled_once():
    torch.manual_seed(0)
    weights = nn.ParameterList([torch.randn(30, 1000), torch.randn(40960), torch.randn(7), torch.randn(400, 60).T])
    twins = copy.deepcopy(weights)
    settings = {"lr": 0.1, "ess": 100, "betas": (0.9, 0.9), "clip_radius": 2.0}
    fused, eager = IVON(weights, **settings, fused=True), IVON(twins, **settings)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for number in range(5):
        step(weights, fused, number)
        step(twins, eager, number)
        for w, t in zip(weights, twins, strict=True):
            torch.testing.assert_close(w, t, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(fused.state[w]["momentum"], eager.state[t]["momentum"], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(fused.state[w]["hessian"], eager.state[t]["hessian"], rtol=1e-4, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, "one graph for samples, one for updates"
