"""Randomness as a function of (seed, step): what makes a resumed run equal an uninterrupted one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from posterity.noise import Key, words


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seed torch, numpy and Python for one step, so that dropout masks and augmentations depend on nothing else."""
    high, low = words(Key(seed, step))
    number = (high & 0xFFFFFFFF) << 32 | (low & 0xFFFFFFFF)
    # torch.manual_seed would queue a call for each accelerator that is not in use, with a stack trace, at every step.
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Give the caller's generators back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
