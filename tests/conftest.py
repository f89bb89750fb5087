"""What all tests share."""

import gc
from collections.abc import Iterator

import pytest
from _pytest.doctest import DoctestModule

# Nearly all objects come from imports, and stay: a seldom search for garbage makes collecting a fifth faster.
gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Examples stand in src alone; looking for them here would import every script among the tests."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]
