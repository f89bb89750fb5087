"""Normals of large tensors by C: those of the counter generator, for any range, with any threads, or none at all."""

import pytest
import torch

from posterity import native, noise
from posterity.native import _normals
from posterity.noise import HALF, ROUNDS, Key, normal, words

KEY = Key(5, 0, 3, 2)
compiled = pytest.mark.skipif(_normals._library_of(HALF, ROUNDS) is None, reason="no C compiler")


def drawn(start, count, key=KEY):
    return native.draw(words(key), start, count, HALF, ROUNDS)


@compiled
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 5000), (511, 2), (1023, 1026), (12_345, 3000)])
def test_any_range_is_that_of_the_generator(start, count):
    torch.testing.assert_close(drawn(start, count), normal(KEY, count, start=start), rtol=2e-6, atol=2e-6)


@compiled
def test_a_part_is_a_part_of_the_whole_and_threads_change_nothing():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = drawn(0, 100_000)
        torch.set_num_threads(1)
        assert torch.equal(drawn(0, 100_000), whole)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn(777, 50_000), whole[777:50_777])


@compiled
def test_large_tensors_are_drawn_by_it(monkeypatch):
    monkeypatch.setattr(noise, "LARGE", 2000)
    assert torch.equal(normal(KEY, 2000, start=3), drawn(3, 2000))
    assert torch.equal(normal(KEY, 2000, dtype=torch.float64), drawn(0, 2000).double())


def test_without_a_compiler_numbers_come_all_the_same(monkeypatch):
    wanted = normal(KEY, 3000)
    monkeypatch.setattr(noise, "LARGE", 2000)
    monkeypatch.setattr(_normals, "_library_of", lambda *_: None)
    assert torch.equal(normal(KEY, 3000), wanted)
