"""What all tests share."""

import gc
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule

# torch's compiler keeps code of one set of instructions, and offers it where others are asked for.
if _LEVEL := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor-{_LEVEL}"))

_RESETS: list[Callable[[], object]] = []  # of generators that modules of tests hold, to their states after the import

# Nearly all objects come from imports, and stay: a seldom search for garbage makes collecting a fifth faster.
gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Examples stand in src alone; looking for them here would import every script among the tests."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_collection_finish() -> None:
    here = str(Path(__file__).parent)
    held = [thing for m in list(sys.modules.values()) if (getattr(m, "__file__", "") or "").startswith(here)
            for thing in vars(m).values()]  # fmt: skip
    for numpy in {id(thing): thing.bit_generator for thing in held if isinstance(thing, np.random.Generator)}.values():
        _RESETS.append(lambda numpy=numpy, state=numpy.state: setattr(numpy, "state", state))
    for torch_ in {id(thing): thing for thing in held if isinstance(thing, torch.Generator)}.values():
        _RESETS.append(lambda torch_=torch_, state=torch_.get_state(): torch_.set_state(state))


def _begin_again() -> None:
    """Random numbers of a test do not depend on which tests the same process has run before."""
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    for reset in _RESETS:
        reset()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:  # before fixtures are made, ...
    _begin_again()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:  # ... which another test of the file may find made
    _begin_again()
