"""Regression with outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import Undefined, require_positive
from posterity.likelihoods._base import Likelihood, check_numbers
from posterity.trees import state_dtype


@dataclass(frozen=True)
class StudentTLikelihood(Likelihood):
    """Regression with outliers: y = f + scale · t_ν. Large errors are forgiven, and the loss is not convex in f.

    The curvature is the Fisher information (ν + 1)/((ν + 3) scale²), which does not depend on y; `hessian` does.
    """

    degrees: float = 4.0
    scale: float = 1.0
    name = "student_t"

    def __post_init__(self) -> None:
        require_positive("degrees", self.degrees)
        require_positive("scale", self.scale)

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        half, nu = 0.5 * (self.degrees + 1), self.degrees
        constant = math.lgamma(0.5 * nu) - math.lgamma(half) + 0.5 * math.log(nu * math.pi) + math.log(self.scale)
        return (constant + half * torch.log1p(((f - y) / self.scale) ** 2 / nu)).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        error = f - y
        return (self.degrees + 1) * error / (self.degrees * self.scale**2 + error**2)

    def curvature(self, f: Tensor) -> Tensor:
        information = (self.degrees + 1) / ((self.degrees + 3) * self.scale**2)
        return information * torch.eye(f.shape[-1], dtype=f.dtype, device=f.device).expand(*f.shape, f.shape[-1])

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        squared, level = (f - y) ** 2, self.degrees * self.scale**2
        return torch.diag_embed((self.degrees + 1) * (level - squared) / (level + squared) ** 2)

    def curvature_root(self, f: Tensor) -> Tensor:
        return self.curvature(f).sqrt()

    def noise_std(self, mean: Tensor) -> Tensor:
        if self.degrees <= 2:
            raise Undefined(f"std: a Student t of {self.degrees:g} degrees of freedom has no variance; see `log_prob`")
        return torch.full_like(mean, self.scale * math.sqrt(self.degrees / (self.degrees - 2)))

    def mean(self, f: Tensor) -> Tensor:
        return f

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        normal = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        shape = torch.full(f.shape, 0.5 * self.degrees, dtype=state_dtype(f.dtype), device=f.device)
        mixing = torch._standard_gamma(shape, generator=generator) / shape  # unknown to torch in half precision
        return f + (self.scale * normal / mixing.sqrt()).to(f.dtype)

    def check(self, f: Tensor, y: Tensor) -> None:
        check_numbers(f, y)

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "degrees": float(self.degrees), "scale": float(self.scale)}
