"""Closed forms for a user's own normalisations and activations, whose parameters each move one channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from posterity.errors import expected, require

Slope = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class _Kind:
    slopes: Mapping[str, Slope]
    axis: int


_KINDS: dict[type[nn.Module], _Kind] = {}


def elementwise(kind: type[nn.Module], *, axis: int = 1, **slopes: Slope) -> None:
    """Give a class of layers a closed form: each parameter has one number for each channel, and moves that alone.

        y_tc = φ(x_tc ; p_c),   slope_tc = ∂y_tc / ∂p_c

    Without it, the parameters of a layer that torch does not have take the slower path of per-example Jacobians. The
    first pass of a model compares the gradients by these slopes with those of autograd, and raises where they differ.

    Args:
        kind: The class of layers; its forward takes one tensor. Subclasses are not covered.
        axis: Where the channels are: 1 for images (B, C, ...), −1 for sequences (B, ..., C).
        **slopes: For each parameter, by its name in the layer: the derivative of the layer's output in it, from the
            layer and its input, in the shape of the output.

    Examples:
        >>> class Scale(nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        ...     def forward(self, x):
        ...         return self.weight * x
        >>> elementwise(Scale, weight=lambda layer, x: x)
    """
    ours = isinstance(kind, type) and issubclass(kind, nn.Module) and not kind.__module__.startswith("torch.")
    require(ours, "kind", "a class of torch.nn.Module that is not torch's own", kind)
    if axis not in (1, -1):
        raise expected("axis", "1 or -1", axis)
    require(bool(slopes), "slopes", "at least one parameter's name and its slope", "none")
    for name, slope in slopes.items():
        require(callable(slope), name, "a function of the layer and its input", slope)
    _KINDS[kind] = _Kind(slopes, axis)


def slopes_of(module: nn.Module) -> Mapping[str, Slope]:
    """The slopes of a module's parameters that have a closed form; none for other modules."""
    known = _KINDS.get(type(module))
    return {} if known is None else known.slopes


def axis_of(module: nn.Module) -> int | None:
    """The axis of the channels of a registered module."""
    known = _KINDS.get(type(module))
    return None if known is None else known.axis
