"""The contract of a posterior's structure, and what every Gaussian structure shares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.curvature.covariance import Covariance
from posterity.errors import InvalidInput, Undefined, expected, require
from posterity.families import ConditionalFamily, DiagonalGaussian, Family, Gaussian
from posterity.linalg import DENSE_LIMIT
from posterity.noise import Key, normal
from posterity.trees import Tree, check_same_shapes, from_vector, state_dtype, to_vector


class Structure(ABC):
    """A distribution over named parameters, of one shape: immutable, on the device of its tensors.

    A structure declares its abilities: what does not exist for it raises `Undefined`, with the reason in `why_not`.

    Attributes:
        kind: Under which it is stored.
        is_dense: Whether its covariance is one matrix over all that varies, which can hold each example's curvature.
        mean: A tensor for each parameter.
    """

    kind: ClassVar[str]
    why_not: ClassVar[str] = ""
    is_dense: ClassVar[bool] = False
    mean: Tree

    def __repr__(self) -> str:
        weights = sum(t.numel() for t in self.mean.values())
        return f"{type(self).__name__}({weights} weights in {len(self.mean)} tensors)"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of flat vectors and of the noise."""
        return tuple(self.mean)

    @property
    def varying(self) -> Structure:
        """The distribution over what varies: that of a last layer, otherwise the structure itself."""
        return self

    @property
    def fixed(self) -> Tree:
        """Parameters without uncertainty, those below a last layer."""
        return {}

    @property
    def gaussian(self) -> GaussianStructure:
        """The Gaussian over what varies."""
        raise expected("posterior", "a Gaussian one (po.laplace makes one of any trained model)", self.kind)

    @property
    def distinct_draws(self) -> int | None:
        """How many draws differ, where there are only so many: the members of an ensemble."""
        return None

    @property
    @abstractmethod
    def variance(self) -> Tree:
        """Marginal variance of each weight, shaped as the mean."""

    @abstractmethod
    def sample(self, k: int, seed: int = 0) -> Tree:
        """Draw number k: the same each time, on any device."""

    @abstractmethod
    def tensors(self) -> Tree:
        """Everything that has to be stored, under flat names."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What has to be stored besides tensors, as JSON."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """The structure that `tensors` and `settings` describe."""

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        """Log-density at a point."""
        raise self.undefined("log_prob")

    def entropy(self) -> Tensor:
        """Differential entropy in nats."""
        raise self.undefined("entropy")

    def kl(self, other: Structure) -> Tensor:
        """KL(self ‖ other) in nats."""
        raise self.undefined("kl")

    def covariance(self) -> Covariance:
        """The covariance, in the shape that layer-wise closed forms use."""
        raise self.undefined("covariance")

    def as_family(self) -> Family | ConditionalFamily:
        """The same distribution as a family of `posterity.families`, over the flat vector of what varies, in float64.

        What the rule moves, posteriors are: densities, entropies and natural parameters of the two agree.
        """
        raise self.undefined("exponential family")

    def undefined(self, what: str) -> Undefined:
        """The error for a quantity that this structure does not have."""
        return Undefined(f"{what}: not defined for the structure {self.kind!r}, {self.why_not}")


class GaussianStructure(Structure):
    """What follows from a Gaussian N(m, P⁻¹) once its precision P can be multiplied and its determinant taken."""

    @abstractmethod
    def quadratic(self, tree: Mapping[str, Tensor]) -> Tensor:
        """xᵀPx for a tree x shaped as the mean."""

    @abstractmethod
    def log_det_precision(self) -> Tensor:
        """log |P|."""

    @abstractmethod
    def precision_diagonal(self) -> Tree:
        """The diagonal of P, shaped as the mean (not the inverse of the marginal variances)."""

    @abstractmethod
    def precision_matrix(self) -> Tensor:
        """P as one dense matrix, in the order of the flat vector."""

    @abstractmethod
    def covariance_matrix(self) -> Tensor:
        """P⁻¹ as one dense matrix, in the order of the flat vector."""

    @property
    def gaussian(self) -> GaussianStructure:
        return self

    def as_family(self) -> Gaussian | DiagonalGaussian:
        return Gaussian(to_vector(self.mean).double(), self.precision_matrix().double())

    def precision_times(self, tree: Mapping[str, Tensor]) -> Tree:
        """P x for a tree x shaped as the mean."""
        x = torch.cat([tree[name].reshape(-1) for name in self.names])
        matrix = self.precision_matrix()
        return from_vector(matrix @ x.to(matrix), self.mean)

    @property
    def dimension(self) -> int:
        """Number of weights D."""
        return sum(t.numel() for t in self.mean.values())

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        check_same_shapes(tree, self.mean, "log_prob")
        constant = self.dimension * math.log(2 * math.pi)
        return 0.5 * (self.log_det_precision() - constant - self.quadratic(_difference(tree, self.mean)))

    def entropy(self) -> Tensor:
        return 0.5 * (self.dimension * (1 + math.log(2 * math.pi)) - self.log_det_precision())

    def kl(self, other: Structure) -> Tensor:
        """½ (tr P₂Σ₁ + (m₂ − m₁)ᵀP₂(m₂ − m₁) − D + log|P₁| − log|P₂|)."""
        if not isinstance(other, GaussianStructure):
            raise other.undefined("kl")
        check_same_shapes(other.mean, self.mean, "kl")
        distance = other.quadratic(_difference(self.mean, other.mean))
        log_ratio = self.log_det_precision() - other.log_det_precision()
        return 0.5 * (other.trace(self) + distance - self.dimension + log_ratio)

    def trace(self, other: GaussianStructure) -> Tensor:
        """Tr PΣ, with the covariance Σ of another Gaussian; from diagonals alone where either matrix is diagonal."""
        if "diagonal" in (self.kind, other.kind):
            precision = self.precision_diagonal()
            return total(precision[name] * v for name, v in other.variance.items())
        matrix = reordered(self.precision_matrix(), self.mean, other.names)
        return (matrix * other.covariance_matrix().to(matrix)).sum(dtype=torch.float64)

    def require_dense(self, what: str) -> None:
        """Refuse a dense matrix that no machine can hold, before it is asked for."""
        if self.dimension > DENSE_LIMIT:
            size = 8 * self.dimension**2 / 2**30
            raise InvalidInput(
                f"{what}: expected at most {DENSE_LIMIT} parameters for a dense matrix, "
                f"got {self.dimension} ({size:.0f} GiB); project to 'diagonal' instead"
            )


def _difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    return {name: a[name].to(t.device, working(t)) - t.to(working(t)) for name, t in b.items()}


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum of all entries of all tensors, in float64, on the device of the first."""
    sums = [t.sum(dtype=torch.float64) for t in terms]
    return torch.stack([s.to(sums[0].device) for s in sums]).sum()


def working(t: Tensor) -> torch.dtype:
    """The dtype in which arithmetic about a tensor is done."""
    return state_dtype(t.dtype)


def standard_normal(like: Mapping[str, Tensor], k: int, seed: int) -> Tree:
    """The noise of draw k: standard normals shaped as `like`, keyed by the position of each parameter."""
    require(k >= 0, "draw number", "an integer >= 0", k)
    return {
        name: normal(Key(seed, 0, k, i), t.numel(), device=t.device, dtype=working(t)).reshape(t.shape)
        for i, (name, t) in enumerate(like.items())
    }


def owned(tree: Mapping[str, Tensor], what: str) -> Tree:
    """Private copies, refused where they hold NaN or infinity."""
    if not tree:
        raise expected(what, "at least one parameter", "none")
    for name, t in tree.items():
        if not (isinstance(t, Tensor) and t.is_floating_point()):
            raise expected(f"{what} of {name!r}", "a floating-point tensor", getattr(t, "dtype", type(t).__name__))
        require(bool(torch.isfinite(t).all()), f"{what} of {name!r}", "finite numbers", "NaN or infinity")
    return {name: t.detach().clone() for name, t in tree.items()}


def reordered(matrix: Tensor, like: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """A dense matrix over the parameters of `like`, rearranged to another order of their names."""
    if tuple(like) == tuple(names):
        return matrix
    place = from_vector(torch.arange(len(matrix), device=matrix.device), like)
    index = torch.cat([place[name].reshape(-1) for name in names])
    return matrix[index][:, index]


def pack(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """A tree under a prefix, for storage."""
    return {f"{prefix}/{name}": t for name, t in tree.items()}


def unpack(prefix: str, tensors: Mapping[str, Tensor], names: Any = None) -> Tree:
    """The tree that was packed under a prefix, in the order of `names` where they are given."""
    start = f"{prefix}/"
    if names is None:
        return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    return {name: tensors[start + name] for name in names}
