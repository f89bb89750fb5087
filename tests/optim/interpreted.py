"""The Triton kernels against plain tensor operations; needs TRITON_INTERPRET=1 before Triton is loaded, or a GPU."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from optim.agreement import *  # noqa: F403
from optim.agreement import DEVICE, SETTINGS, Net, assert_equal, pair, train
from optim.agreement_of_processes import *  # noqa: F403
from posterity.noise import Key, bits, words
from posterity.optim import IVON
from posterity.optim.kernels import _triton_sample, _triton_step, _triton_table

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # integers that wrap, as they should


@pytest.fixture(autouse=True)
def patched_once_a_launch(monkeypatch):
    """The interpreter patches Triton's language again for every call inside a kernel, which is half of its time."""
    patch, patched = interpreter._patch_lang, set()

    def once(function):
        languages = frozenset(name for name, value in function.__globals__.items() if value is tl or value is tl.core)
        if languages in patched:
            return None
        patched.add(languages)
        scope = patch(function)
        restore = scope.restore  # at the end of a launch
        scope.restore = lambda: (patched.clear(), restore())
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", once)


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
        keys = optimizer._fused._launcher.table.keys.cpu()
        assert optimizer.param_groups[0]["draws"] == 1
        for index, row in enumerate(keys.tolist()):
            assert tuple(row[:2]) == words(Key(seed, 1, 0, index))
    found = torch.zeros(2, 1024, dtype=torch.int32, device=DEVICE)
    write_bits[1,](found, keys[2].to(DEVICE), COUNT=1024)
    assert torch.equal(found.cpu(), torch.stack(bits(Key(seed, 1, 0, 2), 0, 1024)))


class Compiled:
    """A kernel as Triton hands it over once it is compiled: called with addresses and every constant, in order."""

    def __init__(self, kernel, tensors):
        self.kernel, self.tensors, self.launches = kernel, tensors, 0

    def __getitem__(self, grid):
        def launch(*arguments):
            self.launches += 1
            named = zip(self.kernel.arg_names, arguments, strict=True)
            constants = {name: a for name, a in named if name.isupper()}
            addressed = arguments[: len(arguments) - len(constants)]
            self.kernel[grid[:1]](*(self.tensors.get(a, a) for a in addressed), **constants)

        return launch


class Compiling:
    """An interpreted kernel that says after its first launch that it has been compiled."""

    def __init__(self, kernel, every):
        self.kernel, self.every, self.__name__, self.arg_names = kernel, every, kernel.__name__, kernel.arg_names

    def __getitem__(self, grid):
        def launch(*arguments, num_warps, **constants):
            self.kernel[grid](*arguments, **constants)
            compiled = Compiled(self.kernel, {a.data_ptr(): a for a in arguments if isinstance(a, torch.Tensor)})
            self.every.append(compiled)
            return compiled

        return launch


@pytest.mark.skipif(DEVICE == "cuda", reason="Triton compiles")
def test_kernels_are_launched_again_as_they_were_compiled(monkeypatch):
    every = []
    for module, names in (
        (_triton_sample, ("draw", "sample", "restore")),
        (_triton_step, ("check", "measure", "step")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Compiling(getattr(module, name), every))
    one, other = pair()
    train(*one, steps=3)
    train(*other, steps=3)
    assert_equal(one, other)
    assert {compiled.launches for compiled in every} == {2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("how", ["context", "ahead"])
def test_a_compiled_cycle(how):
    torch._dynamo.reset()
    one, other = (Net(), Net())
    optimizers = [IVON(model.parameters(), **SETTINGS) for model in (one, other)]
    if how == "ahead":
        for model, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.attach(model, ahead=True)

    def cycle(model, optimizer, k):
        if how == "ahead":
            model(k).backward()
        else:
            with optimizer.sampled_params(train=True):
                model(k).backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(cycle, backend="aot_eager")
    for k in range(2):
        compiled(one, optimizers[0], k)
        cycle(other, optimizers[1], k)
    for optimizer in optimizers:
        optimizer.eval()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)
