"""The C kernels: against plain tensor operations, the counter generator and SciPy."""

import copy
import ctypes
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from optim.agreement import *  # noqa: F403
from optim.agreement import SETTINGS, Net, assert_equal, pair, train
from optim.agreement_of_processes import *  # noqa: F403
from optim.reference import Reference, array
from posterity import native
from posterity.native import _library
from posterity.noise import Key, bits, normal, words
from posterity.optim import IVON
from posterity.optim.kernels import _native
from posterity.optim.kernels._native import NativeLauncher

pytestmark = pytest.mark.skipif(isinstance(_native.library(), str), reason=str(_native.library()))

PROBE = """
#include "{source}"
void hash_pairs(uint32_t start, uint32_t count, uint32_t a, uint32_t b, uint32_t *first, uint32_t *second) {{
    for (uint32_t j = 0; j < count; j++) hash_pair(start + j, a, b, first + j, second + j);
}}
void widen(const uint16_t *narrow, int count, float *bfloats, float *halves) {{
    for (int j = 0; j < count; j++) bfloats[j] = widen_bfloat(narrow[j]), halves[j] = widen_half(narrow[j]);
}}
void narrow(const float *wide, int count, uint16_t *bfloats, uint16_t *halves) {{
    for (int j = 0; j < count; j++) bfloats[j] = narrow_bfloat(wide[j]), halves[j] = narrow_half(wide[j]);
}}
"""


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    """The inner functions of `native.c`, which its library does not show."""
    folder = tmp_path_factory.mktemp("probe")
    source = folder / "probe.c"
    source.write_text(PROBE.format(source=_native.SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return native.load(source, _native.definitions(), native.HEADERS)


def place(t):
    return ctypes.c_void_p(t.data_ptr())


def noise_of(count, seed=0, offset=0):
    """A sample of a posterior of mean zero and width one."""
    weight = nn.Parameter(torch.zeros(count + offset)[offset:])
    optimizer = IVON([weight], lr=0.1, ess=1.0, hess_init=1.0, weight_decay=0.0, seed=seed)
    with optimizer.sampled_params(train=True):
        assert isinstance(optimizer._fused._launcher, NativeLauncher)
        return weight.detach().clone()


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("seed", "start"), [(0, 0), (-3, 4096), (2**40 + 7, 2**32 - 1000)])
def test_the_same_integers(probe, seed, start):
    found = torch.zeros(2, 1000, dtype=torch.int32)
    a, b = words(Key(seed, 1, 0, 2))
    probe.hash_pairs(
        ctypes.c_uint32(start), 1000, ctypes.c_uint32(a), ctypes.c_uint32(b), place(found), place(found[1])
    )
    assert torch.equal(found, torch.stack(bits(Key(seed, 1, 0, 2), start, 1000)))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.integers(-(2**63), 2**63 - 1), st.integers(0, 7))
def test_normals_of_any_size_and_alignment(count, seed, offset):
    torch.testing.assert_close(noise_of(count, seed, offset), normal(Key(seed, 1), count), rtol=1e-6, atol=2e-6)


def test_normals_are_exact_functions_of_their_integers():
    first, second = (t.double().numpy() for t in bits(Key(0, 1), 0, 100 * 512))
    uniform = (np.abs(first.astype(np.float32)) + np.float32(0.5)).astype(np.float64) * 2.0**-31
    radius, angle = np.sqrt(-2 * np.log(uniform)), second * math.pi * 2.0**-31
    exact = np.stack([(radius * f(angle)).reshape(-1, 512) for f in (np.cos, np.sin)], axis=1).reshape(-1)
    assert np.abs(array(noise_of(len(exact))) / exact - 1).max() < 8 * 2.0**-24


def test_normals_are_normal():
    noise = array(noise_of(400_000))
    assert scipy.stats.kstest(noise, "norm").pvalue > 1e-3
    assert abs(noise.mean()) < 4 / math.sqrt(len(noise))
    assert abs(noise.var() - 1) < 4 * math.sqrt(2 / len(noise))
    for lag in (1, 512, 1024):
        assert abs((noise[lag:] * noise[:-lag]).mean()) < 4 / math.sqrt(len(noise))


# ── half precisions ──────────────────────────────────────────────────────────────────────────────────────────────


def test_every_half_is_widened_as_torch_does(probe):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    bfloats, halves = torch.zeros(2**16), torch.zeros(2**16)
    probe.widen(place(every), len(every), place(bfloats), place(halves))
    for found, dtype in ((bfloats, torch.bfloat16), (halves, torch.float16)):
        torch.testing.assert_close(found, every.view(dtype).float(), rtol=0, atol=0, equal_nan=True)


def test_numbers_of_all_sizes_are_narrowed_as_torch_does(probe):
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    ties = torch.arange(-(2**19), 2**19, dtype=torch.int32) * 2**12
    wide = torch.cat([some, ties]).view(torch.float32)
    bfloats, halves = (torch.zeros(len(wide), dtype=dtype) for dtype in (torch.bfloat16, torch.float16))
    probe.narrow(place(wide), len(wide), place(bfloats), place(halves))
    for found in (bfloats, halves):
        torch.testing.assert_close(found, wide.to(found.dtype), rtol=0, atol=0, equal_nan=True)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore:IVON. weight_decay")  # of any size, on purpose
@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3000),
    st.floats(1, 1e6),
    st.floats(0, 0.1),
    st.sampled_from([math.inf, 0.5]),
    st.sampled_from([0.0, 0.9]),
)
def test_the_equations_of_the_paper(size, ess, weight_decay, clip_radius, beta1):
    torch.manual_seed(size)
    options = {"lr": 0.05, "ess": ess, "weight_decay": weight_decay, "clip_radius": clip_radius}
    weight = nn.Parameter(torch.randn(size))
    optimizer = IVON([weight], betas=(beta1, 0.9), **options)
    reference = Reference(array(weight), betas=(beta1, 0.9), **options)
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            sample = array(weight)
            weight.grad = torch.randn(size)
        reference.mean = array(weight)  # the noise is a small difference: float32 would cost it its digits
        reference.step(array(weight.grad), reference.estimate(sample, array(weight.grad)))
        optimizer.step()
        weight.grad = None
        np.testing.assert_allclose(array(weight), reference.mean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(array(optimizer.state[weight]["hessian"]), reference.hessian, rtol=1e-4)
    assert isinstance(optimizer._fused._launcher, NativeLauncher)


def test_threads_change_no_bit():
    def trained(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(100_000))
        optimizer = IVON([weight], **SETTINGS)
        for _ in range(2):
            with optimizer.sampled_params(train=True):
                weight.grad = torch.cos(weight.detach())
            optimizer.step()
            weight.grad = None
        return weight

    before = torch.get_num_threads()
    try:
        assert torch.equal(trained(1), trained(2))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("flag", ["-O1", "-U__FP_FAST_FMAF"], ids=["plain", "as Clang says it"])
def test_neither_vectors_nor_optimisation_nor_the_compiler_change_a_bit(flag, monkeypatch, tmp_path):
    def trained():
        optimizer, model = pair()[0]
        train(optimizer, model, steps=3)
        return [noise_of(50_000), *model.parameters()]

    fast = trained()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_library, "WAYS", ((("-march=native",), ()),))
    monkeypatch.setattr(_library, "FLAGS", (*_library.FLAGS, flag))
    plain = native.load(_native.SOURCE, _native.definitions(), native.HEADERS)
    monkeypatch.setattr(_native, "library", lambda: plain)
    assert all(torch.equal(p, q) for p, q in zip(trained(), fast, strict=True))


@pytest.mark.parametrize("continued", [None, False])
def test_a_checkpoint_of_one_path_continues_on_the_other(continued):
    (optimizer, model), (plain, twin) = pair()
    begun = (plain, twin) if continued is None else (optimizer, model)
    train(*begun)
    again = Net()
    resumed = IVON(again.named_parameters(), lr=1.0, ess=1.0, fused=continued)
    again.load_state_dict(copy.deepcopy(begun[1].state_dict()))
    resumed.load_state_dict(copy.deepcopy(begun[0].state_dict()))
    train(*begun)
    train(resumed, again)
    assert_equal((resumed, again), begun)


def test_parameters_in_part_of_a_storage_and_gradients_of_another_layout():
    one, other = pair()
    for optimizer, model in (one, other):
        for p in model.parameters():
            p.data = torch.cat([p.detach().reshape(-1)[:1], p.detach().reshape(-1)])[1:].view(p.shape)
        with optimizer.sampled_params(train=True):
            model(1).backward()
            model.weights[0].grad = model.weights[0].grad.t().contiguous().t()
        optimizer.step()
    assert_equal(one, other)


def test_without_a_library_it_is_said_once_and_tensor_operations_are_used(monkeypatch):
    _, other = pair()
    train(*other)
    monkeypatch.setattr(_native, "library", lambda: "no C compiler was found")
    model = Net()
    optimizer = IVON(model.named_parameters(), **SETTINGS, fused=True)
    with pytest.warns(UserWarning, match="fused=True has no effect: no C compiler") as said:
        train(optimizer, model)
    assert len(said) == 1
    assert_equal((optimizer, model), other, rtol=0, atol=0)
    quiet = Net()
    train(IVON(quiet.named_parameters(), **SETTINGS), quiet)
    assert torch.equal(quiet.weights[0], model.weights[0])
