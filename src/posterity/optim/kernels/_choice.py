"""Which kernels take the samples and steps of an optimizer: Triton's on a GPU, native ones on a CPU, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.optim.kernels import _native
from posterity.optim.kernels._contract import AdamKernels, IVONKernels
from posterity.optim.kernels._fused import Launcher, launchable
from posterity.optim.kernels._launcher_adam import AdamLauncher
from posterity.optim.kernels._native import NativeLauncher
from posterity.optim.kernels._native_adam import NativeAdam
from posterity.optim.kernels._pointer_table import supported


def kernels_for(device: torch.device) -> type[IVONKernels] | str:
    """The kernels of IVON for a device, or why it has none."""
    return Launcher if launchable(device) else _missing(device) or NativeLauncher


def adam_kernels_for(device: torch.device) -> type[AdamKernels] | str:
    """The kernels of `Variational` over Adam for a device, or why it has none."""
    return AdamLauncher if launchable(device) else _missing(device) or NativeAdam


def _missing(device: torch.device) -> str:
    """Why there are no native kernels."""
    if device.type != "cpu":
        return f"no kernels were found for {device.type}"
    found = _native.library()
    return found if isinstance(found, str) else ""


def usable(parameters: Sequence[Tensor]) -> bool:
    """Whether kernels can work on these parameters: on one device, of known layout and type."""
    return len({p.device for p in parameters}) == 1 and all(map(supported, parameters))
