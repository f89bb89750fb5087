"""Dropout masks by number: the units that one draw switches off, the same for every input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from posterity.noise import Key, bits
from posterity.posterior.dropout import require_mask

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@contextmanager
def masked(model: nn.Module, rates: Mapping[str, float], seed: int) -> Iterator[None]:
    """Switch the named dropout modules on, with masks that follow from `seed`, without touching any module's mode.

    A draw is a network: its mask is shared by all inputs, so that predictions do not depend on how inputs are
    batched and a drawn function can be followed from input to input. Batch normalisation keeps its statistics.

    Args:
        model: A model in evaluation mode, in which dropout modules pass their input on.
        rates: For the name of each dropout module, the probability that a unit is dropped.
        seed: Seed of this draw's masks.

    Yields:
        Nothing; the hooks are removed afterwards, also after an error.
    """
    handles = []
    try:
        for position, (name, rate) in enumerate(rates.items()):
            module = model.get_submodule(name)
            require_mask(name, module)
            handles.append(module.register_forward_hook(_Mask(seed, position, rate)))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Mask:
    """A forward hook that drops units: a module that is called twice gets a second mask."""

    def __init__(self, seed: int, position: int, rate: float) -> None:
        self.seed, self.position, self.rate = seed, position, rate
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        shape = output.shape[1:2] if isinstance(module, _CHANNELS) else output.shape[1:]
        word, _ = bits(Key(self.seed, 0, self.calls, self.position), 0, shape.numel(), output.device)
        self.calls += 1
        keep = ((word >> 8) & 0xFFFFFF) >= self.rate * 2**24
        scaled = keep.to(output.dtype).reshape(shape) / (1 - self.rate)
        return output * scaled.reshape(*shape, *[1] * (output.ndim - 1 - len(shape)))
