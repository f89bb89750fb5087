"""V e without a loop over outputs: gradients of one backward pass, scaled by Σ, pushed forward as tangents."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.curvature import _fallback
from posterity.curvature._single_linear import SingleLinear
from posterity.curvature.covariance import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    KroneckerCovariance,
    times_rows,
)
from posterity.curvature.passes import Pass
from posterity.inputs import take
from posterity.trees import Tree, from_vector


def product(step: Pass, e: Tensor, covariance: Covariance) -> Tensor:
    """J_n Σ J_nᵀ e_n, shaped as e (n, ..., K)."""
    push = Push(step, e)
    if isinstance(covariance, FullCovariance):
        _full(push, covariance.matrix)
    else:
        _blocks(push, covariance)
    return push.result()


class Push:
    """A backward pass of e that can be run forward again, with tangents that enter at the outputs of the layers."""

    def __init__(self, step: Pass, e: Tensor) -> None:
        self.step = step
        self.e = e.to(step.logits).clone().requires_grad_()
        edges = [call.edge for layer in step.layers for call in layer.calls]
        self._raw: tuple[Tensor, ...] = ()
        if edges:
            with torch.enable_grad():
                self._raw = torch.autograd.grad(step.logits, edges, self.e, create_graph=True, materialize_grads=True)
        self.signals = list(step.by_layer([b.detach().unsqueeze(0) for b in self._raw]))
        self.sources = [torch.zeros_like(b[0]) for _, b in self.signals]  # (n, T, out)
        self._changes = torch.zeros_like(e)
        self.v = e.unsqueeze(0)  # the same as one root

    def add_rest(self, examples: slice, directions: Tree) -> None:
        """Tangents of the parameters without a closed form: a direction (n, *shape) of its own for each example."""
        parameters = {name: self.step.tape.parameters[name] for name in directions}
        inputs = take(self.step.inputs, examples)
        self._changes[examples] += _fallback.tangents(self.step.tape.model, parameters, inputs, directions)

    def result(self) -> Tensor:
        """The tangent of the outputs."""
        tangents = [t for (layer, _), source in zip(self.signals, self.sources) for t in layer.scatter(source)]
        reached = [(b, t.to(b)) for b, t in zip(self._raw, tangents) if b.requires_grad]
        if not reached:
            return self._changes
        # Signals are linear in e: their derivative in e, against tangents, is the tangent of the outputs.
        return self._changes + torch.autograd.grad([b for b, _ in reached], self.e, [t for _, t in reached])[0]


def _blocks(push: Push, covariance: DiagonalCovariance | KroneckerCovariance) -> None:
    bases = covariance.bases if isinstance(covariance, KroneckerCovariance) else {}
    for (layer, b), source in zip(push.signals, push.sources):
        for group in layer.groups(b, bases):
            variance, others = group.output_variance(covariance.variance, bases)
            turned = torch.zeros_like(source) if variance is None else group.b[0] * variance.unsqueeze(1)
            for name, parameter in others.items():
                for examples in push.step.split(parameter.numbers(1, name in bases)):
                    s = covariance.variance[name]
                    turned[examples] += parameter.spread(group.b[:, examples], s, examples, bases.get(name))
            source += group.back(turned)
    for examples, rows in push.step.rest_rows(push.v):
        moved = {name: times_rows(g[0], covariance.variance[name], bases.get(name)) for name, g in rows.items()}
        push.add_rest(examples, _shaped(moved, push.step))


def _full(push: Push, matrix: Tensor) -> None:
    step, single = push.step, SingleLinear.of(push.step)
    if single is not None:
        b = push.signals[0][1][0]  # (n, 1, out)
        for examples in step.split(single.numbers):
            push.sources[0][examples] = b[examples] @ single.covariance(matrix, examples)
        return
    for examples, rows in step.jacobians(push.v):
        moved = from_vector(rows[0] @ matrix, step.tape.parameters)
        for (layer, _), source in zip(push.signals, push.sources):
            for name, parameter in layer.parameters.items():
                source[examples] += parameter.tangent(moved[name].flatten(1), examples)
        if step.rest:
            push.add_rest(examples, {name: moved[name] for name in step.rest})


def _shaped(rows: Tree, step: Pass) -> Tree:
    return {name: g.reshape(len(g), *step.tape.parameters[name].shape) for name, g in rows.items()}
