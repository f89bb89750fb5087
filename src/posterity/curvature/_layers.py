"""What each kind of layer does with its parameters: the table that finds the closed forms of a module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from posterity.curvature._layer_parameters import (
    EmbeddingParameter,
    LayerParameter,
    MatrixParameter,
    VectorParameter,
    concatenate,
)
from posterity.curvature.covariance import Bases
from posterity.curvature.elementwise import Slope, axis_of, slopes_of
from posterity.errors import require
from posterity.trees import Tree, state_dtype

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KNOWN = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    *_CONVOLUTIONS,
    *_BATCH_NORMS,
    *_INSTANCE_NORMS,
)


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input, and the place of its output in the graph."""

    input: Tensor
    edge: GradientEdge
    shape: torch.Size  # of the output

    @classmethod
    def of(cls, x: Tensor, output: Tensor) -> Call:
        """The call that made `output` of x."""
        return cls(x.detach(), get_gradient_edge(output), output.shape)


@dataclass(frozen=True)
class Group:
    """Parameters of one layer that need its signals in the same basis, and the signals in that basis."""

    parameters: dict[str, LayerParameter]
    b: Tensor  # (R, n, T, out)
    basis: Tensor | None

    def output_variance(
        self, variance: Tree, bases: Mapping[str, Bases]
    ) -> tuple[Tensor | None, dict[str, LayerParameter]]:
        """Variances (n, out) of the layer's output, and the parameters that have no part in it."""
        total, others = None, {}
        for name, parameter in self.parameters.items():
            found = parameter.output_variance(variance[name], bases.get(name))
            if found is None:
                others[name] = parameter
            else:
                total = found if total is None else total + found
        return total, others

    def back(self, tangents: Tensor) -> Tensor:
        """Tangents in the coordinates of the layer's own outputs."""
        return tangents if self.basis is None else tangents @ self.basis.T


@dataclass(frozen=True)
class RecordedLayer:
    """One module in one forward pass, with all its calls; its parameters by their names in the model."""

    module: nn.Module
    calls: list[Call]
    parameters: dict[str, LayerParameter]

    @classmethod
    def of(cls, module: nn.Module, calls: list[Call], names: dict[str, str]) -> RecordedLayer:
        """A supported module and its calls; `names` maps its own parameter names to those in the model."""
        return cls(module, calls, {name: _layer_parameter(module, own, calls) for own, name in names.items()})

    def gather(self, signals: list[Tensor]) -> Tensor:
        """Signals (R, B, ...) at the outputs of all calls, joined to (R, B, T, out)."""
        parts = [_unfold(self.module, signal, lead=2) for signal in signals]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return joined.to(state_dtype(joined.dtype))

    def groups(self, b: Tensor, bases: Mapping[str, Bases]) -> list[Group]:
        """The parameters, with signals turned once for each basis that is wanted."""
        found: list[Group] = []
        for name, parameter in self.parameters.items():
            basis = parameter.output_basis(bases[name], len(b)) if name in bases else None
            group = next((g for g in found if _same(g.basis, basis)), None)
            if group is None:
                group = Group({}, b if basis is None else b @ basis, basis)
                found.append(group)
            group.parameters[name] = parameter
        return found

    def scatter(self, tangents: Tensor) -> list[Tensor]:
        """Tangents (B, T, out), cut and shaped as the outputs of the calls."""
        pieces = tangents.split([_positions(self.module, call.shape) for call in self.calls], dim=1)
        return [_fold(self.module, piece, call.shape) for piece, call in zip(pieces, self.calls)]


def unsupported(module: nn.Module) -> str | None:
    """Why a module has no closed form, or None where it has one."""
    if slopes_of(module):
        return None
    kind = next((kind for kind in _KNOWN if isinstance(module, kind)), None)
    # A subclass with its own forward may do anything with its parameters.
    if kind is None or type(module).forward is not kind.forward:
        return f"{type(module).__name__} has no closed form"
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        return "an Embedding with max_norm or scale_grad_by_freq has no closed form"
    return None


def closed(module: nn.Module) -> Collection[str]:
    """The names, in the module, of parameters with a closed form.

    Under another name (weight_orig of pruning), a layer of torch makes its weight from it.
    """
    return slopes_of(module) or ("weight", "bias")


def _layer_parameter(module: nn.Module, own: str, calls: list[Call]) -> LayerParameter:
    shape = module.get_parameter(own).shape
    positions = sum(_positions(module, call.shape) for call in calls)
    slope = slopes_of(module).get(own)
    if slope is not None:
        channels = calls[0].shape[axis_of(module) or 1]
        name = f"{type(module).__name__}.{own}"
        require(shape.numel() == channels, name, f"{channels} numbers, one for each channel", shape.numel())
        return VectorParameter(shape, _each(calls, partial(_sloped, module, slope)), positions)
    if own == "bias":
        return VectorParameter(shape, None, positions, plain=isinstance(module, (nn.Linear, *_CONVOLUTIONS)))
    if isinstance(module, nn.Embedding):
        index = torch.cat([call.input.reshape(len(call.input), -1) for call in calls], dim=1)
        return EmbeddingParameter(shape, index, module.padding_idx, state_dtype(module.weight.dtype))
    if isinstance(module, nn.Linear):
        return MatrixParameter(shape, _each(calls, _steps), positions)
    if isinstance(module, _CONVOLUTIONS):
        return MatrixParameter(shape, _each(calls, partial(_patches, module)), positions, module.groups)
    return VectorParameter(shape, _each(calls, lambda x: _unfold(module, _normalised(module, x), lead=1)), positions)


def _each(calls: list[Call], function: Callable[[Tensor], Tensor]) -> Callable[[slice], Tensor]:
    def of(x: Tensor) -> Callable[[slice], Tensor]:
        return lambda examples: function(x[examples]).to(state_dtype(x.dtype))

    return concatenate([of(call.input) for call in calls])


def _steps(x: Tensor) -> Tensor:
    """Inputs (n, ..., in) of a linear layer as (n, T, 1, in)."""
    return x.reshape(x.shape[0], -1, 1, x.shape[-1])


def _patches(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """The windows of a convolution, (n, T, groups, in · kernel), in the order of its weight."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, stride, dilation) in enumerate(zip(module.kernel_size, module.stride, module.dilation)):
        x = x.unfold(2 + axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
    axes = range(2, 2 + len(module.kernel_size))
    kernel_first = x.permute(0, 1, *(axis + len(axes) for axis in axes), *axes)  # (n, channels, *kernel, *positions)
    columns = kernel_first.reshape(len(x), module.groups, -1, x.shape[2 : 2 + len(axes)].numel())
    return columns.permute(0, 3, 1, 2)  # in memory the positions stay last, where copying is cheap


def _normalised(module: nn.Module, x: Tensor) -> Tensor:
    """The input of a normalisation layer as it is before scale and shift."""
    if isinstance(module, _BATCH_NORMS):
        return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    if isinstance(module, _INSTANCE_NORMS):
        own = not module.track_running_stats
        return F.instance_norm(x, module.running_mean, module.running_var, use_input_stats=own, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    assert isinstance(module, nn.RMSNorm)
    return F.rms_norm(x, module.normalized_shape, eps=module.eps)


def _sloped(module: nn.Module, slope: Slope, x: Tensor) -> Tensor:
    return _unfold(module, slope(module, x).detach(), lead=1)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one, other)


def _trailing(module: nn.Module) -> int | None:
    """How many trailing axes of the output are features; None where features are axis 1."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return len(module.normalized_shape)
    return 1 if isinstance(module, (nn.Linear, nn.Embedding)) or axis_of(module) == -1 else None


def _positions(module: nn.Module, shape: torch.Size) -> int:
    trailing = _trailing(module)
    return shape[2:].numel() if trailing is None else shape[1 : len(shape) - trailing].numel()


def _unfold(module: nn.Module, y: Tensor, lead: int) -> Tensor:
    """An output-shaped tensor as (..., T, out), where `lead` axes precede positions and features."""
    trailing = _trailing(module)
    if trailing is None:
        return y.flatten(lead + 1).mT if y.dim() > lead + 1 else y.unsqueeze(lead)
    features = y.shape[y.dim() - trailing :].numel()
    return y.reshape(*y.shape[:lead], -1, features)


def _fold(module: nn.Module, tangents: Tensor, shape: torch.Size) -> Tensor:
    """Tangents (B, T, out) in the shape of an output."""
    return (tangents.mT if _trailing(module) is None else tangents).reshape(shape)
