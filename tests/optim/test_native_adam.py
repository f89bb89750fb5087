"""The C kernels of `Variational` over Adam: against tensor operations, and the same bits whatever the threads."""

import pytest
import torch
from torch import nn

from optim.agreement_of_adam import *  # noqa: F403
from optim.agreement_of_adam import assert_alike, over, train
from optim.agreement_of_gap import *  # noqa: F403
from posterity.optim import Variational
from posterity.optim._meter import COLD
from posterity.optim.kernels import _native
from posterity.optim.kernels._native_adam import NativeAdam

pytestmark = pytest.mark.skipif(isinstance(_native.library(), str), reason=str(_native.library()))


def test_threads_change_no_bit():
    def trained(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(70_000))
        optimizer = Variational(torch.optim.AdamW([weight], lr=1e-2), n=1000, batch_size=10, total_steps=100)
        for k in range(COLD + 4):
            with optimizer.sampled_params(train=True):
                weight.grad = torch.cos(weight.detach() * (1 + k % 2))
            optimizer.step()
            weight.grad = None
        assert isinstance(optimizer._fused._launcher, NativeAdam)
        return weight.detach(), optimizer.state_dict()["meter"]

    before = torch.get_num_threads()
    try:
        (one, meter), (two, other) = trained(1), trained(2)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)
    assert meter == other


def test_a_schedule_that_begins_late_sees_the_steps_of_the_kernels():
    """Its first step warns where it has seen none of the base; warnings are errors here."""
    weight = nn.Parameter(torch.randn(50))
    base = torch.optim.Adam([weight], lr=1e-2)
    optimizer = Variational(base, n=1000, batch_size=10, total_steps=100)
    schedule = None
    for k in range(COLD + 4):
        with optimizer.sampled_params(train=True):
            weight.grad = torch.cos(weight.detach() * (1 + k % 2))
        schedule = torch.optim.lr_scheduler.StepLR(base, 1, gamma=0.5) if k == COLD + 2 else schedule
        optimizer.step()
        weight.grad = None
        if schedule is not None:
            schedule.step()
    assert isinstance(optimizer._fused._launcher, NativeAdam)
    assert base.param_groups[0]["lr"] == 1e-2 / 4


def test_without_a_library_it_is_said_once_and_tensor_operations_are_used(monkeypatch):
    monkeypatch.setattr(_native, "library", lambda: "no C compiler was found")
    (optimizer, model), other = over(True), over(False)
    with pytest.warns(UserWarning, match="fused=True has no effect: no C compiler") as said:
        train(optimizer, model)
    assert len(said) == 1
    train(*other)
    assert_alike((optimizer, model), other, rtol=0, atol=0)
