"""The counter generator: frozen bits, a pure function of its key and index, and good statistics."""

import itertools
import shutil
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from posterity.errors import InvalidInput
from posterity.noise import (
    HALF,
    Key,
    _common,
    bits,
    box_muller,
    hash_pairs,
    normal,
    normals,
    standard_gamma,
    uniform,
    words,
)

N = 1 << 20
KEYS = [Key(0, 1), Key(0, 2), Key(1, 1), Key(0, 1, 1), Key(0, 1, 0, 1), Key(2**40, 12345, 3, 77)]

FROZEN_WORDS = [(-559529931, 1314057214), (2051976160, 1861954111)]
FROZEN_BITS = ([-977357477, -1893050761, 333219564], [219151759, -362594655, 519501595])
FROZEN_NORMALS = [-0.6999018, -0.17124, 0.195354, -1.1503334]


def test_frozen_vectors():
    """These numbers are part of every saved posterior: they must never change."""
    assert words(Key(0)) == FROZEN_WORDS[0]
    assert words(Key(2**40 + 5, 7, 3, 11)) == FROZEN_WORDS[1]
    first, second = bits(Key(2**40 + 5, 7, 3, 11), 1000, 3)
    assert (first.tolist(), second.tolist()) == FROZEN_BITS
    frozen = torch.tensor(FROZEN_NORMALS)
    torch.testing.assert_close(normal(Key(1, 2, 3, 4), 2, start=510), frozen[:2], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normal(Key(1, 2, 3, 4), 2, start=1022), frozen[2:], rtol=1e-6, atol=1e-6)


def test_the_hash_in_plain_integers():
    """The recipe of the module's docstring, on Python's integers."""
    a, b = (word % 2**32 for word in words(KEYS[3]))
    multipliers = (0x7FEB352D, 0x846CA68B, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)

    def rounds(x, which):
        for k in which:
            x = (x ^ (x >> (16 if k % 2 == 0 else 15))) * multipliers[k] % 2**32
        return x

    for counter in (0, 1, 12345, 2**32 - 1):
        first = rounds((rounds((counter + a) % 2**32, [0]) + b) % 2**32, [1, 2, 3])
        second = rounds((first + a) % 2**32, [4, 5])
        found = bits(KEYS[3], counter, 1)
        assert [word.item() % 2**32 for word in found] == [first, second]


@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 10), (511, 2), (512, 512), (1023, 1), (1000, 5000)])
def test_any_piece_is_a_piece_of_the_whole(start, count):
    whole = normal(Key(3, 1, 4, 1), 9000)
    assert torch.equal(normal(Key(3, 1, 4, 1), count, start=start), whole[start : start + count])


def test_many_small_pieces_at_once_are_the_pieces_one_by_one():
    keys = [Key(3, 1, 0, k) for k in range(6)]
    counts, starts = [10, 500, 1024, 3000, 0, 1025], [0, 1023, 0, 4096, 2048, 513]
    expected = [normal(key, n, start=s) for key, n, s in zip(keys, counts, starts, strict=True)]
    assert torch.equal(normals(keys, counts, starts), torch.cat(expected))


def test_tensor_operations_give_the_bits_of_numpy():
    for key, start in itertools.product(KEYS, (0, 2**31 - 100, 2**32 - 1000)):
        first, second = bits(key, start, 1000)
        counter = torch.arange(start, start + 1000).to(torch.int32)
        expected = hash_pairs(counter, *words(key))
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1])


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_compiled_code_gives_the_same_bits():
    compiled = torch.compile(hash_pairs, dynamic=True)
    a, b = words(KEYS[-1])
    counter = torch.arange(2048, dtype=torch.int32)
    expected = bits(KEYS[-1], 0, 2048)
    found = compiled(counter, torch.tensor(a, dtype=torch.int32), torch.tensor(b, dtype=torch.int32))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_a_range_beyond_the_counter_is_refused():
    with pytest.raises(InvalidInput, match="32 bits"):
        bits(Key(0), 2**32 - 10, 11)


def test_keys_do_not_collide():
    keys = itertools.product(range(4), range(64), range(8), range(32))
    found = {words(Key(*key)) for key in keys}
    assert len(found) == 4 * 64 * 8 * 32
    assert len({a for a, _ in found}) > 0.999 * len(found)  # a 32-bit word alone collides as often as chance has it


def test_every_bit_is_fair_and_every_input_bit_matters():
    generator = torch.Generator().manual_seed(0)
    counter = torch.randint(-(2**31), 2**31, (20_000,), generator=generator).to(torch.int32)
    a, b = words(KEYS[0])
    base = hash_pairs(counter, a, b)
    limit = 6 * 0.5 / len(counter) ** 0.5  # six standard errors of a fair coin

    def ones(word):
        return ((word[:, None] >> torch.arange(8, 32)) & 1).double().mean(0)  # the 24 bits that reach a normal

    for word in base:
        assert (ones(word) - 0.5).abs().max() < limit
    for bit in range(32):
        flip = torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
        for changed in (hash_pairs(counter ^ flip, a, b), hash_pairs(counter, a ^ int(flip), b)):
            for old, new in zip(base, changed, strict=True):
                assert (ones(old ^ new) - 0.5).abs().max() < limit


@pytest.mark.parametrize("key", KEYS)
def test_words_are_uniform_alone_and_in_pairs(key):
    first, second = (w.numpy().view(np.uint32) for w in bits(key, 0, N))
    for word in (first, second):
        counts = np.bincount(word >> 20, minlength=4096)
        assert stats.chisquare(counts).pvalue > 1e-5
    together = np.bincount((first >> 25 << 7) | (second >> 25), minlength=1 << 14)
    assert stats.chisquare(together).pvalue > 1e-5
    neighbours = np.bincount((first[:-1] >> 25 << 7) | (first[1:] >> 25), minlength=1 << 14)
    assert stats.chisquare(neighbours).pvalue > 1e-5


@pytest.mark.parametrize("key", KEYS)
def test_normals_are_normal(key):
    z = normal(key, N, dtype=torch.float64).numpy()
    assert stats.kstest(z, "norm").pvalue > 1e-4
    root = N**0.5
    for power, variance in ((1, 1), (2, 2), (3, 15), (4, 96), (6, 10170)):  # moments 0, 1, 0, 3, 15
        moment = {1: 0, 2: 1, 3: 0, 4: 3, 6: 15}[power]
        assert abs((z**power).mean() - moment) * root / variance**0.5 < 5


def test_tails_reach_far_and_are_as_heavy_as_they_should_be():
    z = torch.cat([normal(Key(5, step), N) for step in range(1, 17)]).abs()
    for threshold in (3.0, 4.0, 5.0):
        expected = len(z) * 2 * stats.norm.sf(threshold)
        assert abs((z > threshold).sum().item() - expected) < 5 * expected**0.5
    extreme, _ = box_muller(torch.tensor([0], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))
    assert 6.5 < extreme.item() < 6.8
    smallest, _ = box_muller(torch.tensor([-(2**31)], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))
    assert smallest.item() == 0


@pytest.mark.parametrize("lag", [1, 2, 7, 64, HALF - 1, HALF, HALF + 1, 2 * HALF, 4096, 65536])
def test_no_correlation_along_the_index(lag):
    z = normal(Key(11, 1), N, dtype=torch.float64)
    for f in (lambda x: x, lambda x: x**2 - 1, torch.sign):
        x = f(z)
        assert abs((x[lag:] * x[:-lag]).mean() / x.var()) * (N - lag) ** 0.5 < 5


@pytest.mark.parametrize("field", ["seed", "step", "sample", "parameter"])
@pytest.mark.parametrize("distance", [1, 2, 256, 2**16])
def test_no_correlation_between_keys(field, distance):
    base = Key(11, 1, 0, 0)
    x = normal(base, N, dtype=torch.float64)
    y = normal(base._replace(**{field: getattr(base, field) + distance}), N, dtype=torch.float64)
    for shift in (0, 1, HALF, 2 * HALF):
        product = (x[shift:] * y[: N - shift]).mean()
        assert abs(product) * (N - shift) ** 0.5 < 5
    assert abs(((x**2 - 1) * (y**2 - 1)).mean() / 2) * N**0.5 < 5


def test_sums_over_many_steps_spread_like_independent_draws():
    """What an optimizer sees: the same few weights, step after step."""
    z = torch.stack([normal(Key(1, step), 16, dtype=torch.float64) for step in range(1, 4001)])
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-4
    total = (z.sum(0) / 4000**0.5).numpy()
    assert stats.kstest(total, "norm").pvalue > 1e-3
    correlation = np.corrcoef(z.numpy(), rowvar=False) - np.eye(16)
    assert np.abs(correlation).max() * 4000**0.5 < 5


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_numpys_integers_are_integers(kind):
    _common.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = normal(Key(kind(3), kind(2), kind(1), kind(7)), 5)
    assert torch.equal(ours, normal(Key(3, 2, 1, 7), 5))


def test_many_pieces_do_not_wrap_around():
    with pytest.raises(InvalidInput, match="within 32 bits"):
        normals([Key(0), Key(0, 1)], [5, 5], [0, 2**33])
    with pytest.raises(InvalidInput, match="keys: expected at least one"):
        normals([], [], [])


def test_uniform_numbers_stay_inside_their_interval():
    u = uniform(Key(0, 1), N)
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 6.0, 4000.0])
def test_gamma_draws_follow_their_distribution(shape):
    draws = standard_gamma(Key(3), torch.full((100, 1000), shape, dtype=torch.float64))
    assert draws.shape == (100, 1000)
    assert stats.kstest(draws.flatten().numpy(), stats.gamma(shape).cdf).pvalue > 1e-3


def test_gamma_draws_do_not_depend_on_their_neighbours():
    """A second attempt at one entry leaves the others as they are."""
    shapes = torch.linspace(0.1, 9.0, 2000, dtype=torch.float64)
    assert torch.equal(standard_gamma(Key(5), shapes)[:7], standard_gamma(Key(5), shapes[:7]))
