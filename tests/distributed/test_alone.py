"""One process alone: sharing its passes with nobody changes nothing."""

import pytest
import torch
from torch import distributed as dist
from torch import nn

from distributed.questions import answers
from posterity.distributed import sharded
from posterity.errors import InvalidInput
from posterity.optim._distributed import Replicas


def test_without_others_nothing_changes():
    alone = answers()
    with sharded():
        again = answers()
    for name, t in alone.items():
        assert torch.equal(again[name], t), name


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_gradients_of_other_processes_are_equal_up_to_a_thousandth_of_their_size(size, monkeypatch):
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.full((1,), size)
    for more, equal in ((5e-4, True), (5e-3, False)):

        def reduced(extremes, more=more, **_):  # another process has a larger norm
            extremes[0] *= 1 + more

        monkeypatch.setattr(dist, "all_reduce", reduced)
        if equal:
            Replicas().require_equal_gradients([weight])
        else:
            with pytest.raises(InvalidInput, match="gradients: expected the same on all processes"):
                Replicas().require_equal_gradients([weight])
