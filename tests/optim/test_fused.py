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


@pytest.mark.parametrize("options", [{}, {"betas": (0.9, "auto"), "total_steps": 12}, {"clip_radius": 0.5}])
def test_flat_tables_take_the_steps_of_single_tensors(options):
    torch.manual_seed(0)
    weights = nn.ParameterList([torch.randn(3, 5), torch.randn(70, 1024), torch.randn(1025), torch.randn(1)])
    twins = copy.deepcopy(weights)
    settings = {"lr": 0.1, "ess": 100, "betas": (0.9, 0.9), **options}
    tables, single = IVON(weights, **settings), IVON(twins, **settings, fused=False)
    for number in range(12):
        step(weights, tables, number)
        step(twins, single, number)
    state = [tables.state[w] for w in weights]
    assert len({s["hessian"].untyped_storage().data_ptr() for s in state}) == 1, "tables were not used"
    for w, t in zip(weights, twins, strict=True):
        torch.testing.assert_close(w, t, rtol=1e-5, atol=1e-5)
        for name, value in single.state[t].items():
            torch.testing.assert_close(tables.state[w][name], value, rtol=1e-4, atol=1e-5)


def test_an_edit_between_sample_and_step_is_seen():
    weights, twins = ([nn.Parameter(torch.ones(4))] for _ in range(2))
    for parameters, options in ((weights, {}), (twins, {"fused": False})):
        optimizer = IVON(parameters, lr=0.1, ess=100, **options)
        for _ in range(3):
            with optimizer.sampled_params(train=True):
                (parameters[0] ** 2).sum().backward()
            with torch.no_grad():
                parameters[0].mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(weights[0], twins[0])
