"""Prediction covariance V_n = J_n Σ J_nᵀ of each example, and its products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.curvature._gradients import GradientRows
from posterity.curvature._single_linear import SingleLinear
from posterity.curvature._tape import Tape
from posterity.curvature.covariance import Covariance, FullCovariance, KroneckerCovariance, rotate
from posterity.curvature.passes import Pass
from posterity.curvature.products import product
from posterity.errors import expected, require
from posterity.inputs import Inputs


def prediction_covariance(
    model: nn.Module,
    inputs: Inputs,
    covariance: Covariance,
    *,
    class_axis: int | None = -1,
    memory: int | None = None,
) -> Tensor:
    """The covariance V_n = J_n Σ J_nᵀ of each example's outputs, when the weights have covariance Σ.

    For a layer y = W a + c that meets an example once and a diagonal Σ with variances S and s, the outputs y are
    independent with variances S a² + s, and

        V_kl = Σ_o b_ko b_lo (S a² + s)_o

    A Kronecker Σ is the same in the coordinates of its bases. No Jacobian is formed. Sequences and maps have a
    covariance at each of their positions, at the cost of as many backward passes, unless Σ is of the last layer alone.

    Args:
        model: Network with outputs (B, ..., K).
        inputs: A batch of inputs.
        covariance: Σ over some or all trainable parameters; the others are fixed.
        class_axis: Where the outputs have their K classes; None takes axis 1 of maps (B, K, H, W), otherwise the last.
        memory: Bytes that may be held at a time beside the model, the data and the result; a modest amount by default.

    Returns:
        V, (B, ..., K, K).

    Examples:
        >>> from posterity.curvature import DiagonalCovariance
        >>> model = nn.Linear(2, 1)
        >>> sigma = DiagonalCovariance({"weight": torch.tensor([[0.1, 0.2]]), "bias": torch.tensor([1.0])})
        >>> prediction_covariance(model, torch.tensor([[1.0, 2.0]]), sigma)  # 0.1·1² + 0.2·2² + 1
        tensor([[[1.9000]]])
    """
    found = []
    with watch(model, covariance, memory, class_axis) as tape:
        for _, step in tape.passes(inputs):
            rows = step.apart()
            each = [gram(rows, v, covariance) for v in rows.at_positions(every_output)]
            found.append(torch.stack(each, 1).reshape(*step.logits.shape, step.logits.shape[-1]))
    return torch.cat(found)


def prediction_covariance_product(
    model: nn.Module, inputs: Inputs, covariance: Covariance, e: Tensor, *, memory: int | None = None
) -> Tensor:
    """V_n e_n for each example, whatever the number of outputs: a forward, a backward and a tangent pass.

    The backward pass gives each example's gradient J_nᵀ e_n in factored form, Σ acts on it, and the tangent pass
    carries the result forward. For y = W a and a diagonal Σ the tangent enters at the layer's output as b ∘ (S a²).

    Args:
        model: Network with outputs (B, ..., K).
        inputs: A batch of inputs.
        covariance: Σ over some or all trainable parameters.
        e: Vectors shaped as the outputs, such as residuals.
        memory: Bytes that may be held at a time beside the model and the data; a modest amount by default.

    Returns:
        V e, shaped as e.
    """
    found = []
    with watch(model, covariance, memory) as tape:
        for part, step in tape.passes(inputs, roots=1):
            found.append(product(step, like_logits(e[part], step), covariance))
    return torch.cat(found)


def self_influence(
    model: nn.Module, inputs: Inputs, covariance: Covariance, e: Tensor, *, memory: int | None = None
) -> Tensor:
    """e_nᵀ V_n e_n for each example, (B,): how far its own loss would move it, from the backward pass alone."""
    found = []
    with watch(model, covariance, memory) as tape:
        for part, step in tape.passes(inputs, roots=1):
            found.append(gram(step, like_logits(e[part], step).unsqueeze(0), covariance)[:, 0, 0])
    return torch.cat(found)


def watch(model: nn.Module, covariance: Covariance, memory: int | None, class_axis: int | None = -1) -> Tape:
    """A tape for the parameters that a covariance covers, after a look at its shapes."""
    if not isinstance(covariance, Covariance):
        wanted = "a DiagonalCovariance, KroneckerCovariance or FullCovariance, such as posterior.covariance()"
        raise expected("covariance", wanted, type(covariance).__name__)
    sizes = (
        {name: shape.numel() for name, shape in covariance.shapes.items()}
        if isinstance(covariance, FullCovariance)
        else {name: v.numel() for name, v in covariance.variance.items()}
    )
    tape = Tape(model, list(sizes), memory, class_axis)
    for name, p in tape.parameters.items():
        require(sizes[name] == p.numel(), f"covariance of {name!r}", f"{p.numel()} variances", sizes[name])
    return tape


def every_output(logits: Tensor) -> Tensor:
    """The unit vectors of output space for each example, (K, n, K)."""
    require(logits.dim() == 2, "model output", "shape (B, K) for a covariance of outputs", tuple(logits.shape))
    k = logits.shape[1]
    return torch.eye(k, dtype=logits.dtype, device=logits.device).unsqueeze(1).expand(k, *logits.shape)


def like_logits(e: Tensor, step: Pass) -> Tensor:
    """Output vectors of this pass, after a look at their shape."""
    if e.shape != step.logits.shape:
        raise expected("e", f"shape {tuple(step.logits.shape)} like the outputs", tuple(e.shape))
    return e.detach().to(step.outputs)


def gram(step: Pass, v: Tensor, covariance: Covariance) -> Tensor:
    """v_rᵀ J_n Σ J_nᵀ v_s for output directions v (R, n, ..., K): (n, R, R)."""
    if isinstance(covariance, FullCovariance):
        return _full_gram(step, v, covariance.matrix)
    bases = covariance.bases if isinstance(covariance, KroneckerCovariance) else {}
    total = v.new_zeros(v.shape[1], len(v), len(v))
    for layer, b in step.signals(v):
        for group in layer.groups(b, bases):
            variance, others = group.output_variance(covariance.variance, bases)
            if variance is not None:
                signals = group.b[:, :, 0].transpose(0, 1)  # (n, R, out)
                total += (signals * variance.unsqueeze(1)) @ signals.mT
            for name, parameter in others.items():
                for examples in step.split(parameter.numbers(len(v), name in bases)):
                    gradient = parameter.gradient(group.b[:, examples], examples, bases.get(name))
                    total[examples] += gradient.gram(covariance.variance[name])
    for examples, found in step.rest_rows(v):
        for name, rows in found.items():
            turned = rotate(rows, bases[name]) if name in bases else rows
            total[examples] += GradientRows(turned).gram(covariance.variance[name])
    return total


def _full_gram(step: Pass, v: Tensor, matrix: Tensor) -> Tensor:
    single = SingleLinear.of(step)
    total = v.new_zeros(v.shape[1], len(v), len(v))
    if single is not None:
        b = next(step.signals(v))[1][:, :, 0].transpose(0, 1)  # (n, R, out)
        for examples in step.split(single.numbers):
            total[examples] = b[examples] @ single.covariance(matrix, examples) @ b[examples].mT
        return total
    for examples, rows in step.jacobians(v):
        j = rows.transpose(0, 1)
        total[examples] = (j @ matrix) @ j.mT
    return total
