"""The memory-perturbation equation: how outputs change when examples are removed, re-weighted or relabelled.

Giving example i the weight w and the target y′ changes its contribution to the gradient by −(e − w e′) and its
contribution to the curvature by −(1 − w)Λ. One Newton step gives

    Δθ = (Σ⁻¹ − (1 − w) JᵀΛJ)⁻¹ Jᵀ(e − w e′),      Δf = (I − (1 − w) VΛ)⁻¹ V (e − w e′)

Removal is w = 0, relabelling is w = 1 (the curvature stays). The first-order form drops the inverse: prediction
variance times prediction error. The deflated one takes the example's own curvature out of Σ, so it has to be in there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import require
from posterity.posterior import Posterior

Deflate = bool | str


def contains_examples(posterior: Posterior) -> bool:
    """Whether the precision holds each example's own curvature JᵀΛJ, not an approximation of it.

    Dense Gauss-Newton matrices do (of all weights, of a generalised linear model, of a last layer). Diagonal,
    Kronecker and optimizer-state covariances do not: there V Λ may exceed one and deflation is meaningless.
    """
    return posterior.structure.varying.is_dense


def whether_to_deflate(deflate: Deflate, posterior: Posterior) -> bool:
    """True and False are obeyed; "auto" deflates where the covariance contains the examples."""
    if isinstance(deflate, bool):
        return deflate
    require(deflate == "auto", "deflate", "True, False or 'auto'", deflate)
    return contains_examples(posterior)


def change_of_outputs(
    variance: Tensor, curvature: Tensor, push: Tensor, lost: float | Tensor = 1.0, *, deflate: bool
) -> Tensor:
    """Δf = (I − lost · VΛ)⁻¹ V push of each example, or V push to first order.

    Args:
        variance: V (N, K, K).
        curvature: Λ (N, K, K).
        push: e − w e′ (N, K); the residual e for a removal.
        lost: 1 − w, a number or one for each example.
        deflate: Whether the example's own curvature is taken out of the covariance.

    Returns:
        The change of the example's own outputs (N, K).

    Examples:
        >>> v, one, e = torch.tensor([[[0.2]]]), torch.ones(1, 1, 1), torch.tensor([[3.0]])
        >>> change_of_outputs(v, one, e, deflate=True)  # h r / (1 − h), as in linear regression
        tensor([[0.7500]])

    References:
        Nickl, Xu, Tailor, Möllenhoff and Khan, "The memory-perturbation equation", 2023.
    """
    first = (variance @ push.unsqueeze(-1)).squeeze(-1)
    return torch.linalg.solve(deflation(variance, curvature, lost), first) if deflate else first


def change_of_variance(variance: Tensor, curvature: Tensor, lost: float | Tensor = 1.0, *, deflate: bool) -> Tensor:
    """V without the example, (I − lost · VΛ)⁻¹ V; V itself to first order."""
    return torch.linalg.solve(deflation(variance, curvature, lost), variance) if deflate else variance


def deflation(variance: Tensor, curvature: Tensor, lost: float | Tensor = 1.0) -> Tensor:
    """The matrix I − lost · VΛ of each example."""
    share = lost.reshape(-1, 1, 1) if isinstance(lost, Tensor) else lost
    identity = torch.eye(variance.shape[-1], dtype=variance.dtype, device=variance.device)
    return identity - share * (variance @ curvature)
