"""One recorded forward pass, and per-example gradients from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from posterity.curvature import _fallback
from posterity.curvature._gradients import Gradient, GradientRows
from posterity.curvature._layer_parameters import split
from posterity.curvature._layers import Call, RecordedLayer
from posterity.inputs import Inputs, take
from posterity.trees import state_dtype

if TYPE_CHECKING:
    from posterity.curvature._tape import Tape

_ONE_BY_ONE = 4  # output directions up to which a backward pass for each costs less than one for all by vmap


def pulled(outputs: Tensor, edges: Sequence[GradientEdge], u: Tensor) -> tuple[Tensor, ...]:
    """(∂f/∂y)ᵀ u at each edge y, for one direction u shaped as the outputs f.

    It is the gradient of ⟨f, u⟩: given u beside f, `torch.autograd.grad` would import sympy to compare their shapes,
    which takes longer than the map of a small table.
    """
    with torch.enable_grad():
        total = (outputs * u).sum()
    return torch.autograd.grad(total, edges, retain_graph=True, materialize_grads=True)


@dataclass(frozen=True)
class Pass:
    """Logits with their graph, the layers with closed forms, and the names of the parameters that have none."""

    tape: Tape
    inputs: Inputs
    logits: Tensor
    layers: list[RecordedLayer]
    rest: list[str]

    @property
    def outputs(self) -> Tensor:
        """The logits without their graph, in float32 at least: what directions in output space are made from."""
        return self.logits.detach().to(state_dtype(self.logits.dtype))

    @property
    def is_head(self) -> bool:
        """Whether all that is watched is one linear layer, whose output is the logits."""
        if self.rest or len(self.layers) != 1 or len(self.layers[0].calls) != 1:
            return False
        edge = self.layers[0].calls[0].edge
        at_the_end = edge.node is self.logits.grad_fn and edge.output_nr == self.logits.output_nr
        return at_the_end and isinstance(self.layers[0].module, nn.Linear)

    def apart(self) -> Pass:
        """This pass, with every position for an example of its own where one linear layer gives the logits."""
        if not self.is_head or self.logits.ndim == 2:
            return self
        head = self.layers[0]
        x = head.calls[0].input.flatten(0, -2)
        with torch.enable_grad():
            logits = self.logits.flatten(0, -2)
        own = {key: name for key, name in self.tape.own(head.module).items() if name in head.parameters}
        return replace(self, logits=logits, layers=[RecordedLayer.of(head.module, [Call.of(x, logits)], own)])

    def at_positions(self, directions: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Directions (R, n, K) made from outputs (n, K), at one position after the other: (R, n, ..., K)."""
        flat = self.outputs.reshape(len(self.logits), -1, self.logits.shape[-1])
        for position in range(flat.shape[1]):
            own = directions(flat[:, position])
            v = own.new_zeros(len(own), *flat.shape)
            v[:, :, position] = own
            yield v.reshape(len(own), *self.logits.shape)

    def signals(self, v: Tensor) -> Iterator[tuple[RecordedLayer, Tensor]]:
        """b = (∂f/∂y)ᵀ v at the output y of each layer, (R, B, T, out), for output directions v (R, B, ..., K)."""
        edges = [call.edge for layer in self.layers for call in layer.calls]
        if not edges:
            return
        v = v.to(self.logits)
        with _fallback.transformable():
            if len(v) <= _ONE_BY_ONE:
                found: Sequence[Tensor] = [
                    torch.stack(pulls) for pulls in zip(*(pulled(self.logits, edges, u) for u in v))
                ]
            else:
                found = torch.autograd.grad(
                    self.logits, edges, v, retain_graph=True, is_grads_batched=True, materialize_grads=True
                )
        yield from self.by_layer(found)

    def by_layer(self, signals: Sequence[Tensor]) -> Iterator[tuple[RecordedLayer, Tensor]]:
        """Signals in the order of all calls, joined layer by layer."""
        start = 0
        for layer in self.layers:
            stop = start + len(layer.calls)
            yield layer, layer.gather(list(signals[start:stop]))
            start = stop

    def gradients(self, v: Tensor) -> Iterator[tuple[str, slice, Gradient]]:
        """Per-example gradients J_nᵀ v_rn for output directions v (R, B, ..., K).

        Yields:
            The parameter's name, which examples (a few at a time), and their gradients.
        """
        for layer, b in self.signals(v):
            for name, parameter in layer.parameters.items():
                for examples in self.split(parameter.numbers(len(v))):
                    yield name, examples, parameter.gradient(b[:, examples], examples)
        for examples, found in self.rest_rows(v):
            for name, rows in found.items():
                yield name, examples, GradientRows(rows)

    def jacobians(self, v: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The same for all parameters at once, written out: (R, n, P), in the order of the tape's names."""
        total = sum(p.numel() for p in self.tape.parameters.values())
        signals = list(self.signals(v))
        for examples in self.split(2 * total * len(v)):
            found = {
                name: parameter.gradient(b[:, examples], examples).rows()
                for layer, b in signals
                for name, parameter in layer.parameters.items()
            }
            if self.rest:
                found |= self._rest_rows(v[:, examples], examples)
            rows = v[:, examples].shape[:2]
            for name, p in self.tape.parameters.items():
                found.setdefault(name, v.new_zeros(*rows, p.numel()))  # unless something reads the parameter
            yield examples, torch.cat([found[name] for name in self.tape.names], dim=-1)

    def rest_rows(self, v: Tensor) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Gradients (R, n, numel) of the parameters without a closed form."""
        if self.rest:
            total = sum(self.tape.parameters[name].numel() for name in self.rest)
            for examples in self.split(2 * total * len(v)):
                yield examples, self._rest_rows(v[:, examples], examples)

    def _rest_rows(self, v: Tensor, examples: slice) -> dict[str, Tensor]:
        parameters = {name: self.tape.parameters[name] for name in self.rest}
        inputs, axis = take(self.inputs, examples), self.tape.class_axis
        found = _fallback.rows(self.tape.model, parameters, inputs, v.to(self.logits), axis)
        return {name: rows.to(v) for name, rows in found.items()}

    def split(self, numbers: int) -> list[slice]:
        """The examples in slices within the memory, when one of them needs so many numbers."""
        return split(len(self.logits), numbers, self.logits.element_size(), self.tape.memory)
