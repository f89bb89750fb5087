"""Networks of one architecture that learn side by side, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from posterity.trees import evaluating

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Identity)
_STACKED = (nn.Linear, nn.Flatten, nn.LayerNorm, *_ELEMENTWISE)


@dataclass(frozen=True)
class Committee:
    """Networks side by side.

    Args:
        parameters: What to differentiate by.
        forward: A batch for each network to its outputs, (K, B, ...) to (K, B, outputs).
        one: The outputs of network k, in evaluation mode.
    """

    parameters: list[Tensor]
    forward: Callable[[Tensor], Tensor]
    one: Callable[[int, Tensor], Tensor]


def committee(networks: Sequence[nn.Module], inputs: Tensor) -> Committee:
    """Small networks as one, with stacked weights; networks of other layers, such as convolutions, one by one."""
    for network in networks:
        network.train()
    first = networks[0]
    if _is_perceptron(first, inputs):
        return _perceptrons(networks)
    if stacks(first):
        try:
            return _stacked(networks, inputs)
        except (RuntimeError, ValueError):  # a forward pass that vmap cannot follow
            pass
    every: list[Tensor] = [p for network in networks for p in network.parameters() if p.requires_grad]

    def alone(k: int, x: Tensor) -> Tensor:
        with evaluating(networks[k]):
            return networks[k](x)

    return Committee(every, lambda x: torch.stack([net(part) for net, part in zip(networks, x)]), alone)


def stacks(network: nn.Module) -> bool:
    """Whether copies of a network can learn side by side as one: a perceptron, of known layers alone."""
    leaves = [module for module in network.modules() if next(module.children(), None) is None]
    return all(isinstance(module, _STACKED) for module in leaves)


def _is_perceptron(network: nn.Module, inputs: Tensor) -> bool:
    """Whether a network does nothing but apply its layers to vectors, one after the other."""
    row = list(network) if type(network) is nn.Sequential else []
    plain = all(type(layer) in (nn.Linear, nn.Flatten, *_ELEMENTWISE) for layer in row)
    flat = inputs.ndim == 2 or (len(row) > 0 and isinstance(row[0], nn.Flatten))
    wholes = all((layer.start_dim, layer.end_dim) == (1, -1) for layer in row if isinstance(layer, nn.Flatten))
    linear = [id(layer) for layer in row if isinstance(layer, nn.Linear)]
    return bool(row) and plain and flat and wholes and len(set(linear)) == len(linear)


def _perceptrons(networks: Sequence[nn.Module]) -> Committee:
    """A batched product for each layer: half the cost of `vmap` where layers are small.

        h_k ← h_k W_k + b_k

    Weights are kept transposed: their gradients hᵀ g then have the layout of what they are added to.
    """
    layers: list[tuple[nn.Module, Tensor | None, Tensor | None]] = []
    for same in zip(*networks):
        first = same[0]
        if isinstance(first, nn.Linear):
            bias = None if first.bias is None else _leaf([layer.bias for layer in same])
            layers.append((first, _leaf([layer.weight for layer in same], transposed=True), bias))
        else:
            layers.append((first, None, None))

    def forward(x: Tensor) -> Tensor:
        h = x
        for layer, weight, bias in layers:
            if weight is not None:
                h = torch.bmm(h, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), h, weight)
            else:
                h = h.flatten(2) if isinstance(layer, nn.Flatten) else layer(h)
        return h

    def one(k: int, x: Tensor) -> Tensor:
        h = x
        for layer, weight, bias in layers:
            if weight is not None:
                h = h @ weight[k] if bias is None else torch.addmm(bias[k], h, weight[k])
            else:
                h = layer(h)
        return h

    every = [t for _, *parts in layers for t in parts if t is not None]
    return Committee([p for p in every if p.requires_grad], forward, one)


def _leaf(same: Sequence[Tensor], transposed: bool = False) -> Tensor:
    """The same parameter of all networks as one, that learns if theirs do."""
    stacked = torch.stack([p.detach() for p in same])
    return (stacked.mT if transposed else stacked).contiguous().requires_grad_(same[0].requires_grad)


def _stacked(networks: Sequence[nn.Module], inputs: Tensor) -> Committee:
    first = networks[0]
    weights, buffers = stack_module_state(list(networks))
    together = vmap(lambda state, x: functional_call(first, state, (x,)))
    # Matrices are kept transposed, as in `_perceptrons`.
    kept = {name: _transposed(p).detach().contiguous().requires_grad_(p.requires_grad) for name, p in weights.items()}

    def state() -> dict[str, Tensor]:
        return {name: _transposed(p) for name, p in kept.items()} | buffers

    def forward(x: Tensor) -> Tensor:
        return together(state(), x)

    def one(k: int, x: Tensor) -> Tensor:
        with evaluating(first):
            return functional_call(first, {name: t[k] for name, t in state().items()}, (x,))

    with torch.no_grad():
        forward(inputs[:2].expand(len(networks), *inputs[:2].shape))
    return Committee([p for p in kept.values() if p.requires_grad], forward, one)


def _transposed(stacked: Tensor) -> Tensor:
    """Matrices of several networks (K, M, N) as (K, N, M); vectors as they are."""
    return stacked.mT if stacked.ndim == 3 else stacked
