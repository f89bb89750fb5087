"""The diagonal Gaussian: every weight on its own, as from IVON and mean-field learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.curvature.covariance import DiagonalCovariance
from posterity.errors import InvalidInput, Undefined, expected
from posterity.families import DiagonalGaussian
from posterity.posterior._structure import GaussianStructure, owned, pack, standard_normal, total, unpack, working
from posterity.trees import Tree, to_vector


@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(GaussianStructure):
    """N(m, diag(1/precision)).

    A precision of zero is a flat direction: allowed, because priors may be flat, but such a Gaussian has neither
    variance nor density: both raise `Undefined`.

    Args:
        mean: A tensor for each parameter.
        precision: For each parameter a tensor that broadcasts to the shape of the mean (a number is enough).

    Examples:
        >>> prior = Diagonal.isotropic({"w": torch.zeros(2, 3)}, precision=4.0)
        >>> prior.variance["w"][0]
        tensor([0.2500, 0.2500, 0.2500])
    """

    mean: Tree
    precision: Tree
    kind: ClassVar[str] = "diagonal"

    def __post_init__(self) -> None:
        mean = owned(self.mean, "mean")
        for name in self.precision:
            if name not in mean:
                raise expected("precision", f"parameters among {sorted(mean)}", name)
        precision = {name: _fitting(name, self.precision.get(name), t) for name, t in mean.items()}
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "precision", precision)

    @classmethod
    def isotropic(cls, like: Mapping[str, Tensor], precision: float) -> Self:
        """The prior N(0, 1/precision) on parameters shaped as `like`."""
        mean = {name: torch.zeros_like(t) for name, t in like.items()}
        return cls(mean, {name: torch.tensor(precision, dtype=working(t)) for name, t in like.items()})

    def restrict(self, names: tuple[str, ...]) -> Diagonal:
        """The marginal over some of the parameters."""
        for name in names:
            if name not in self.mean:
                raise expected("names", f"parameters among {sorted(self.mean)}", name)
        return Diagonal({name: self.mean[name] for name in names}, {name: self.precision[name] for name in names})

    @property
    def variance(self) -> Tree:
        self._require_proper("variance")
        return {name: p.reciprocal() for name, p in self.precision_diagonal().items()}

    def sample(self, k: int, seed: int = 0) -> Tree:
        self._require_proper("sample")
        noise = standard_normal(self.mean, k, seed)
        return {
            name: noise[name].mul_(self.precision[name].rsqrt()).add_(m).to(m.dtype) for name, m in self.mean.items()
        }

    def quadratic(self, tree: Mapping[str, Tensor]) -> Tensor:
        return total(self.precision[name] * t**2 for name, t in tree.items())

    def log_det_precision(self) -> Tensor:
        self._require_proper("density")
        return total(p.log() for p in self.precision_diagonal().values())

    def precision_diagonal(self) -> Tree:
        return {name: self.precision[name].expand(t.shape) for name, t in self.mean.items()}

    def as_family(self) -> DiagonalGaussian:
        self._require_proper("exponential family")
        return DiagonalGaussian(to_vector(self.mean).double(), to_vector(self.precision_diagonal()).double())

    def times(self, factor: float) -> Diagonal:
        """The same mean with its precision times a number: a Gaussian that counts for so much."""
        return Diagonal(self.mean, {name: factor * p for name, p in self.precision.items()})

    def precision_times(self, tree: Mapping[str, Tensor]) -> Tree:
        return {name: p * tree[name] for name, p in self.precision_diagonal().items()}

    def precision_matrix(self) -> Tensor:
        self.require_dense("precision")
        return torch.diag(torch.cat([p.reshape(-1) for p in self.precision_diagonal().values()]))

    def covariance_matrix(self) -> Tensor:
        self.require_dense("covariance")
        return torch.diag(torch.cat([v.reshape(-1) for v in self.variance.values()]))

    def covariance(self) -> DiagonalCovariance:
        return DiagonalCovariance(self.variance)

    def tensors(self) -> Tree:
        return pack("mean", self.mean) | pack("precision", self.precision)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(unpack("mean", tensors, settings["names"]), unpack("precision", tensors, settings["names"]))

    @cached_property
    def _flat(self) -> str | None:
        """The first parameter with a flat direction."""
        return next((name for name, p in self.precision.items() if not bool((p > 0).all())), None)

    def _require_proper(self, what: str) -> None:
        if self._flat is not None:
            raise Undefined(f"{what}: not defined for a Gaussian that is flat (precision 0) in {self._flat!r}")


def _fitting(name: str, precision: Tensor | float | None, mean: Tensor) -> Tensor:
    """One precision, checked: there, finite, not negative, and of a shape that broadcasts to the mean's."""
    if precision is None:
        raise expected("precision", f"a tensor for parameter {name!r}", "none")
    precision = torch.as_tensor(precision, dtype=working(mean), device=mean.device).detach().clone()
    try:
        precision.expand(mean.shape)
    except RuntimeError:
        raise expected(f"precision of {name!r}", f"shape {tuple(mean.shape)}", tuple(precision.shape)) from None
    if not bool(torch.isfinite(precision).all()):
        raise InvalidInput(f"precision of {name!r}: expected finite numbers, got NaN or infinity")
    if bool((precision < 0).any()):
        raise expected(f"precision of {name!r}", "numbers >= 0", f"{precision.min().item():g}")
    return precision
