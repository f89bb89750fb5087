"""Kronecker factors, accumulated over passes."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.curvature._layer_parameters import LayerParameter, WeightParameter
from posterity.curvature._tape import Tape
from posterity.curvature.passes import Pass
from posterity.distributed import total
from posterity.errors import InvalidInput
from posterity.trees import state_dtype

LARGEST = 20_000  # rows of a factor; beyond, the factor alone would take gigabytes


class Factors:
    """Sums of outer products of signals b and of inputs a, for each parameter.

    A parameter without a closed form, or of a normalisation with many axes, gets one step from the sum of its squared
    gradients towards the nearest Kronecker product: B = Σ GGᵀ, A = Σ GᵀG / tr Σ GᵀG.
    """

    def __init__(self, tape: Tape, sharing: str) -> None:
        self.reduce = sharing == "reduce"
        self.sums = {name: _room(name, p) for name, p in tape.parameters.items()}
        self.seen = dict.fromkeys(tape.names, 0)  # outer products in the sum over inputs
        self.inputs = dict.fromkeys(tape.names, 1)  # which factor is that of the inputs
        self.last: Pass | None = None

    def add(self, step: Pass, v: Tensor) -> None:
        """Add the signals of output directions v (R, n, ..., K); inputs count once for each pass."""
        for layer, b in step.signals(v):
            plain = None  # the factor that a weight and its bias share
            for name, parameter in layer.parameters.items():
                if not (
                    parameter.plain or isinstance(parameter, WeightParameter)
                ):  # scale or shift of a normalisation, few numbers
                    self._add_rows(name, parameter.gradient(b, slice(None)).rows().flatten(0, 1))
                    continue
                factor = plain if parameter.plain and plain is not None else parameter.signal_factor(b, self.reduce)
                plain = factor if parameter.plain else plain
                self._add(step, name, parameter, factor)
        for _, rows in step.rest_rows(v):
            for name, g in rows.items():
                self._add_rows(name, g.flatten(0, 1))
        self.last = step

    def add_head(self, step: Pass, curvature: Tensor) -> None:
        """Add the linear layer that gives the logits: Σ b bᵀ over all its roots is the curvature Σ Λ itself."""
        for name, parameter in step.layers[0].parameters.items():
            self._add(step, name, parameter, curvature)
        self.last = step

    def _add(self, step: Pass, name: str, parameter: LayerParameter, signal_factor: Tensor) -> None:
        if not isinstance(parameter, WeightParameter):
            self.sums[name][0] += signal_factor
            return
        self.inputs[name] = parameter.input_axis
        self.sums[name][1 - parameter.input_axis] += signal_factor
        if step is not self.last:
            for examples in step.split(parameter.numbers(0, turned=True)):
                factor, count = parameter.input_factor(examples, self.reduce)
                self.sums[name][parameter.input_axis] += factor
                self.seen[name] += count

    def result(self) -> dict[str, tuple[Tensor, ...]]:
        """The factors (B, A), or (B,) for parameters with one axis."""
        found = {name: [total(factor) for factor in sums] for name, sums in self.sums.items()}
        seen = dict(zip(self.seen, total(torch.tensor(list(self.seen.values()))).tolist(), strict=True))
        for name, sums in found.items():
            if len(sums) == 2:
                factor = sums[self.inputs[name]]
                factor /= seen[name] or factor.trace().clamp_min(torch.finfo(factor.dtype).tiny)
        return {name: tuple(sums) for name, sums in found.items()}

    def _add_rows(self, name: str, g: Tensor) -> None:
        sums = self.sums[name]
        g = g.unflatten(-1, [len(factor) for factor in sums])
        if len(sums) == 1:
            sums[0] += g.T @ g
        else:
            sums[0] += torch.einsum("noi,npi->op", g, g)
            sums[1] += torch.einsum("noi,noj->ij", g, g)


def _room(name: str, p: Tensor) -> list[Tensor]:
    sizes = [p.numel()] if p.dim() < 2 else [p.shape[0], p.shape[1:].numel()]
    if max(sizes) > LARGEST:
        raise InvalidInput(
            f"{name}: expected at most {LARGEST} rows and columns for Kronecker factors, got {tuple(p.shape)}; "
            "take the diagonal instead, or freeze this parameter"
        )
    return [torch.zeros(size, size, dtype=state_dtype(p.dtype), device=p.device) for size in sizes]
