"""Local reparameterisation: linear layers draw their outputs, one draw for each example, in place of their weights.

x (m + σε)ᵀ  ~  N(x mᵀ, x² (σ²)ᵀ)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.trees import state_dtype

Widths = tuple[Tensor, Tensor | None]


@contextmanager
def local_noise(widths: Mapping[nn.Linear, Widths]) -> Iterator[None]:
    """While it is open, linear layers add the noise of their weights to their outputs.

    Examples in a batch then have noise of their own, which averages out in the gradient of their mean loss; weights
    drawn once for all of them do not.

    Args:
        widths: σ of weight and bias of each layer; None for a bias that is certain or not there.

    References:
        Kingma, Salimans and Welling, "Variational dropout and the local reparameterization trick", 2015.
    """

    def add(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear)
        (x,) = (*args, *named.values())
        return out + _noise(x, out, *widths[layer])

    with ExitStack() as stack:
        for layer in widths:
            stack.callback(layer.register_forward_hook(add, with_kwargs=True).remove)
        yield


def _noise(x: Tensor, out: Tensor, sigma: Tensor, sigma_bias: Tensor | None) -> Tensor:
    if x.ndim != 2:  # positions share the weights, and so their noise
        shift = None if sigma_bias is None else sigma_bias * torch.randn_like(sigma_bias)
        return F.linear(x, sigma * torch.randn_like(sigma), shift)
    # In half precision σ² is zero below σ = 2e-4, and x² infinite above 256.
    dtype = state_dtype(sigma.dtype)
    shift = None if sigma_bias is None else sigma_bias.to(dtype).square()
    with torch.autocast(x.device.type, enabled=False):
        variance = F.linear(x.to(dtype).square(), sigma.to(dtype).square(), shift)
        # A square root has no slope at zero, where a row of zeros meets a layer without bias.
        noise = (variance + 1e-20).sqrt() * torch.randn_like(variance)
    return noise.to(out.dtype)


def uncertain_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[nn.Linear, tuple[str, str]]:
    """Linear layers whose weights no other module holds, with the names of weight and bias."""
    holders: dict[int, int] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            holders[id(p)] = holders.get(id(p), 0) + 1
    return {
        module: (f"{name}.weight".lstrip("."), f"{name}.bias".lstrip("."))
        for name, module in model.named_modules()
        # Subclasses may use their weights without being called, as the one in nn.MultiheadAttention does.
        if type(module) is nn.Linear
        and all(holders[id(p)] == 1 for p in module.parameters())
        and f"{name}.weight".lstrip(".") in parameters
    }
