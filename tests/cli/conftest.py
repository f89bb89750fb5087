"""What the tests of the command line share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """Undo what `merge` does for a quick end of its process: this one goes on."""
    yield
    gc.unfreeze()
