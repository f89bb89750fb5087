"""The Triton kernels against plain tensor operations; needs TRITON_INTERPRET=1 before Triton is loaded, or a GPU."""

import pytest
import torch
import triton
import triton.language as tl

from optim.agreement import *  # noqa: F403
from optim.agreement import DEVICE, SETTINGS, Net
from posterity.noise import Key, bits, words
from posterity.optim import IVON
from posterity.optim.kernels import _triton_table

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # integers that wrap, as they should


@triton.jit
def write_bits(found, keys, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    a, b = tl.load(keys).to(tl.uint32, bitcast=True), tl.load(keys + 1).to(tl.uint32, bitcast=True)
    first, second = _triton_table.hash_pairs(lane.to(tl.uint32), a, b)
    tl.store(found + lane, first.to(tl.int32, bitcast=True))
    tl.store(found + COUNT + lane, second.to(tl.int32, bitcast=True))


@pytest.mark.parametrize("seed", [0, -3, 2**40 + 7])
def test_the_same_integers(seed):
    model = Net()
    optimizer = IVON(model.parameters(), **SETTINGS, seed=seed)
    with optimizer.sampled_params(train=True):
        keys = optimizer._fast._launcher.table.keys.cpu()
        assert optimizer.param_groups[0]["draws"] == 1
        for index, row in enumerate(keys.tolist()):
            assert tuple(row[:2]) == words(Key(seed, 1, 0, index))
    found = torch.zeros(2, 1024, dtype=torch.int32, device=DEVICE)
    write_bits[1,](found, keys[2].to(DEVICE), COUNT=1024)
    assert torch.equal(found.cpu(), torch.stack(bits(Key(seed, 1, 0, 2), 0, 1024)))
