"""Which kernels take the samples and steps of an optimizer: Triton's on a GPU, native ones on a CPU, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.optim.kernels import _native
from posterity.optim.kernels._contract import Kernels
from posterity.optim.kernels._fused import Launcher, launchable
from posterity.optim.kernels._native import NativeLauncher
from posterity.optim.kernels._pointer_table import supported


def kernels_for(device: torch.device) -> type[Kernels] | str:
    """The kernels of a device, or why it has none."""
    if launchable(device):
        return Launcher
    if device.type != "cpu":
        return f"no kernels were found for {device.type}"
    found = _native.library()
    return found if isinstance(found, str) else NativeLauncher


def usable(parameters: Sequence[Tensor]) -> bool:
    """Whether kernels can work on these parameters: on one device, of known layout and type."""
    return len({p.device for p in parameters}) == 1 and all(map(supported, parameters))
