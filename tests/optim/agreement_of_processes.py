"""Kernels against tensor operations where there are many processes: samples of another rank, and shards."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from optim.agreement import DEVICE, SETTINGS, assert_equal, pair, train
from posterity.errors import InvalidInput
from posterity.optim import EVON, IVON, SAM, BayesBiNN, BayesianSAM, Variational, VariationalNewton, kernels
from posterity.optim._distributed import Replicas


@pytest.fixture
def only_kernels(monkeypatch):
    """Refuse samples and steps by tensor operations, from when it is called."""

    def refuse(*_):
        raise AssertionError("tensor operations")

    return lambda *names: [monkeypatch.setattr(kernels, name, refuse) for name in names or ("perturb", "update")]


@pytest.mark.parametrize("noise", ["shared", "per_rank"])
@pytest.mark.parametrize("how", ["context", "several"])
def test_samples_of_another_rank_and_several_of_them(how, noise, monkeypatch, only_kernels):
    monkeypatch.setattr(Replicas, "rank", 3)
    one, other = pair(noise=noise)
    train(*other, how)
    only_kernels()
    train(*one, how)
    assert_equal(one, other)


@pytest.fixture
def second_of_two():
    """The mesh of a process that has a neighbour only by name."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield init_device_mesh(DEVICE, (2,))
    dist.destroy_process_group()


def test_shards_that_begin_anywhere(second_of_two, only_kernels):
    """Within a block of noise, at the beginning of one, and nowhere; two samples a step, at gradients of cos."""

    def trained(fused):
        torch.manual_seed(0)
        whole = [torch.randn(shape, device=DEVICE) for shape in ((2, 600), (4, 1024), (1, 5))]
        weights = [nn.Parameter(distribute_tensor(t, second_of_two, [Shard(0)], src_data_rank=None)) for t in whole]
        optimizer = IVON(weights, **SETTINGS, fused=fused)
        samples = []
        for k in range(4):
            with optimizer.sampled_params(train=True):
                samples += [w.to_local().clone() for w in weights]
                for w in weights:
                    w.grad = (w.detach().cos() + (0 if w.grad is None else w.grad)) / (1 + k % 2)
            if k % 2:
                optimizer.step()
                optimizer.zero_grad()
        return samples + [t.to_local() for w in weights for t in (w, optimizer.state[w]["hessian"])]

    plain = trained(fused=False)
    only_kernels("perturb")
    for found, expected in zip(trained(fused=None), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [SAM, BayesianSAM, EVON, VariationalNewton, BayesBiNN])
def test_who_cannot_work_on_shards_says_so(kind, second_of_two):
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 2), second_of_two, [Shard(0)], src_data_rank=None))
    with pytest.raises(InvalidInput, match="params: expected whole parameters on each process, got 'sharded ones'"):
        kind([weight], lr=0.1, **({} if kind is SAM else {"ess": 10}))


def test_a_base_has_shards_alone_or_none(second_of_two):
    """Sums over all weights would count whole parameters once for each process."""
    shard = nn.Parameter(distribute_tensor(torch.ones(4, 2), second_of_two, [Shard(0)], src_data_rank=None))
    with pytest.raises(
        InvalidInput, match="base: expected parameters that are all sharded alike, or none, got '2 kinds"
    ):
        Variational(torch.optim.AdamW([shard, *(nn.Parameter(torch.ones(2)) for _ in range(2))]), n=10)
    Variational(torch.optim.AdamW([shard]), n=10)
