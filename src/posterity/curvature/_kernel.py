"""The kernel J_n Σ J_mᵀ between the examples of two batches."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from posterity.curvature._gradients import Gradient, GradientRows
from posterity.curvature.covariance import (
    Covariance,
    DiagonalCovariance,
    FullCovariance,
    KroneckerCovariance,
    rotate,
)
from posterity.curvature.passes import Pass
from posterity.curvature.prediction import every_output, watch
from posterity.inputs import Inputs


def kernel(
    model: nn.Module, inputs: Inputs, others: Inputs, covariance: Covariance, *, memory: int | None = None
) -> Tensor:
    """The covariance J_n Σ J_mᵀ between the outputs of every pair of examples.

    For a layer y = W a that meets each example once, and a diagonal Σ with variances S,

        k(n, m)_kl = Σ_o b_nko b_mlo (Σ_i S_oi a_ni a_mi)

    Args:
        model: Network with outputs (B, K).
        inputs: A batch of inputs.
        others: Another batch, or the same.
        covariance: Σ over some or all trainable parameters; the others are fixed.
        memory: Bytes that may be held at a time beside the model, the data and the result; a modest amount by default.

    Returns:
        The kernel, (B, B', K, K).

    Examples:
        >>> from posterity.curvature import DiagonalCovariance
        >>> model = nn.Linear(2, 1, bias=False)
        >>> sigma = DiagonalCovariance({"weight": torch.tensor([[0.5, 0.25]])})
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> kernel(model, x, x, sigma).squeeze()  # x diag(S) xᵀ
        tensor([[1.5000, 3.5000],
                [3.5000, 8.5000]])
    """
    rows = []
    with watch(model, covariance, memory) as tape:
        for _, left in tape.passes(inputs):
            found = [_between(*_alike(left, right), covariance) for _, right in tape.passes(others)]
            rows.append(torch.cat(found, dim=1))
    return torch.cat(rows)


def _alike(left: Pass, right: Pass) -> tuple[Pass, Pass]:
    """The passes, without closed forms where they do not meet the same layers (an expert may meet no example)."""
    closed = [[layer.parameters.keys() for layer in step.layers] for step in (left, right)]
    if closed[0] == closed[1] and left.rest == right.rest:
        return left, right
    return replace(left, layers=[], rest=left.tape.names), replace(right, layers=[], rest=right.tape.names)


def _between(left: Pass, right: Pass, covariance: Covariance) -> Tensor:
    v, w = every_output(left.outputs), every_output(right.outputs)
    total = v.new_zeros(v.shape[1], w.shape[1], len(v), len(w))
    if isinstance(covariance, FullCovariance):
        for examples, rows in left.jacobians(v):
            moved = rows @ covariance.matrix
            for others, columns in right.jacobians(w):
                total[examples, others] = torch.einsum("rnp,smp->nmrs", moved, columns)
    else:
        _add_layers(total, left, right, covariance)
        _add_rest(total, left, right, covariance)
    return total


def _add_layers(total: Tensor, left: Pass, right: Pass, covariance: DiagonalCovariance | KroneckerCovariance) -> None:
    bases = covariance.bases if isinstance(covariance, KroneckerCovariance) else {}
    roots = total.shape[-1]
    v, w = every_output(left.outputs), every_output(right.outputs)
    for (layer, b), (other_layer, c) in zip(left.signals(v), right.signals(w), strict=True):
        for group, other_group in zip(layer.groups(b, bases), other_layer.groups(c, bases), strict=True):
            for name, parameter in group.parameters.items():
                other = other_group.parameters[name]
                turned = name in bases
                for examples in left.split(
                    parameter.numbers(roots, turned) + parameter.pairs(roots, len(right.logits))
                ):
                    g = parameter.gradient(group.b[:, examples], examples, bases.get(name))
                    for others in right.split(other.numbers(roots, turned)):
                        h = other.gradient(other_group.b[:, others], others, bases.get(name))
                        total[examples, others] += _cross(g, h, covariance.variance[name])


def _cross(g: Gradient, h: Gradient, variance: Tensor) -> Tensor:
    if type(g) is not type(h):  # one batch has one position, the other many
        g, h = GradientRows(g.rows()), GradientRows(h.rows())
    return g.cross(h, variance)


def _add_rest(total: Tensor, left: Pass, right: Pass, covariance: DiagonalCovariance | KroneckerCovariance) -> None:
    bases = covariance.bases if isinstance(covariance, KroneckerCovariance) else {}
    v, w = every_output(left.outputs), every_output(right.outputs)
    for examples, found in left.rest_rows(v):
        for others, other_found in right.rest_rows(w):
            for name, rows in found.items():
                g, h = rows, other_found[name]
                if name in bases:
                    g, h = rotate(g, bases[name]), rotate(h, bases[name])
                total[examples, others] += GradientRows(g).cross(GradientRows(h), covariance.variance[name])
