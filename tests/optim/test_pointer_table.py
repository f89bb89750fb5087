"""The table of addresses that kernels work from: which gradients it points to, and which it copies first."""

import weakref

import pytest
import torch

from posterity.errors import InvalidInput
from posterity.optim.kernels._pointer_table import Entry, Table, supported


def table(*shapes):
    names = ("p", "buffer", "momentum", "hessian", "step", "forgetting", "level", "scatter", "spread")
    tensors = [{name: torch.zeros(shape if i < 4 else ()) for i, name in enumerate(names)} for shape in shapes]
    entries = [Entry(views, group=0, index=i, squares=False) for i, views in enumerate(tensors)]
    return Table(entries, [(0, 0, torch.tensor(0), torch.tensor(0))])


def test_gradients_are_pointed_to_where_they_are():
    made, gradients = table((4, 2), (3,)), [torch.ones(4, 2), None]
    made.set_gradients(gradients)
    assert made.gradients.tensor.tolist() == [gradients[0].data_ptr(), 0]
    gradients = [torch.ones(4, 2), torch.ones(3)]
    made.set_gradients(gradients)
    assert made.gradients.tensor.tolist() == [g.data_ptr() for g in gradients]


@pytest.mark.parametrize(
    "gradient", [torch.rand(2, 4).T, torch.rand(9)[1:].view(4, 2), torch.rand(4, 2, dtype=torch.float64)]
)
def test_other_layouts_types_and_alignments_are_copied_at_every_step(gradient):
    made = table((4, 2))
    for _ in range(2):
        gradient.mul_(2)
        made.set_gradients([gradient])
        (copy,) = made._copies
        assert made.gradients.tensor.tolist() == [copy.data_ptr()]
        assert copy.is_contiguous()
        assert copy.data_ptr() % 16 == 0
        assert torch.equal(copy, gradient.float())


def test_gradients_are_not_kept():
    made, gradient = table((4, 2)), torch.ones(4, 2)
    made.set_gradients([gradient])
    seen = weakref.ref(gradient)
    del gradient
    assert seen() is None


def test_sparse_gradients_are_refused():
    with pytest.raises(InvalidInput, match="dense"):
        table((4, 2)).set_gradients([torch.ones(4, 2).to_sparse()])


def test_numbers_that_begin_between_addresses_are_left_to_tensor_operations():
    room = bytearray(4 * 8 + 4)
    found = {
        offset: supported(torch.frombuffer(room, dtype=torch.float32, offset=offset, count=8)) for offset in (0, 1)
    }
    assert found == {0: True, 1: False}
