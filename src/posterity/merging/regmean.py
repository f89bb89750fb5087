"""RegMean: each linear layer of the merged model is a regression on the outputs of all models' layers."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from posterity.errors import require
from posterity.linalg import cholesky
from posterity.merging._method import Chunk, Method, Scope
from posterity.merging.linear import Linear


@dataclass(frozen=True)
class RegMean(Method):
    """W = (Σ_t w_t W_t G̃_t)(Σ_t w_t G̃_t)⁻¹ for W (out, in), with the Gram matrix G_t = XᵀX (in, in) of its inputs.

    G̃ has the off-diagonal entries of G scaled by `shrink`. Parameters without a Gram matrix are averaged, and so are
    the weights of inputs that no example ever excites: a ridge at the limit of the digits pulls towards the average.

    Args:
        shrink: Factor on off-diagonal entries, from 0 (diagonal) to 1 (unchanged).

    References:
        Jin, Ren, Preotiuc-Pietro and Cheng, "Dataless knowledge fusion by merging weights of language models", 2023.
    """

    shrink: float = 0.9
    name = "regmean"
    needs_base = False
    needs_curvature = True
    averages = True

    def __post_init__(self) -> None:
        fine = isinstance(self.shrink, Real) and 0 <= self.shrink <= 1
        require(fine, "shrink", "a number from 0 to 1", self.shrink)

    @property
    def scope(self) -> Scope:
        return "whole"

    def curvature_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[-1:] * 2

    def combine(self, chunk: Chunk, measured: Any) -> Tensor:
        if not chunk.curvatures:
            return Linear().combine(chunk, None)
        total, right = torch.zeros(()), torch.zeros(())
        for W, G, weight in zip(chunk.models, chunk.curvatures, chunk.weights, strict=True):
            G = weight * (self.shrink * G + (1 - self.shrink) * torch.diag(G.diagonal())).double()
            total, right = total + G, right + W.double() @ G
        average = Linear().combine(chunk, None)
        ridge = torch.finfo(average.dtype).eps * total.trace().item() or 1.0  # where no input is excited at all
        factor = cholesky(total + ridge * torch.eye(len(total)).to(total), "sum of Gram matrices")
        return torch.cholesky_solve((right + ridge * average).mT, factor).mT.to(average)
