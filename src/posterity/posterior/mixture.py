"""Mixtures of posteriors, and ensembles: mixtures of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.families import MixtureOfGaussians
from posterity.noise import Key, normal
from posterity.posterior._structure import Structure, owned, pack, reordered, unpack, working
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.kronecker import Kronecker
from posterity.posterior.last_layer import LastLayer
from posterity.posterior.low_rank import LowRank
from posterity.posterior.rotated import Rotated
from posterity.trees import Tree, check_same_shapes, to_vector

_COMPONENTS: dict[str, type[Structure]] = {c.kind: c for c in (Diagonal, Full, Kronecker, Rotated, LastLayer, LowRank)}


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(Structure):
    """Σ_c w_c q_c over structures with the same parameters.

    Args:
        weights: Mixing weights w, positive; they are normalised to sum to one.
        components: The structures q_c.
    """

    weights: Tensor
    components: Sequence[Structure]
    mean: Tree = field(init=False)
    kind: ClassVar[str] = "mixture"
    why_not: ClassVar[str] = "which has no closed form; average `log_prob` over draws instead"

    def __post_init__(self) -> None:
        weights = torch.as_tensor(self.weights, dtype=torch.float64).detach().cpu().clone()
        components = tuple(self.components)
        require(len(components) > 0, "components", "at least one", "none")
        require(weights.shape == (len(components),), "weights", f"shape ({len(components)},)", tuple(weights.shape))
        fine = bool((torch.isfinite(weights) & (weights > 0)).all())
        require(fine, "weights", "positive finite numbers", weights.tolist())
        for component in components:
            if component.kind not in _COMPONENTS:
                raise expected("components", f"structures among {sorted(_COMPONENTS)}", component.kind)
            check_same_shapes(component.mean, components[0].mean, "components")
        # Weights that are normalised already stay as they are, to the last bit: loading must not change them.
        normalised = abs(weights.sum().item() - 1) < 1e-12
        object.__setattr__(self, "weights", weights if normalised else weights / weights.sum())
        object.__setattr__(self, "components", components)
        object.__setattr__(self, "mean", _like(self._average([c.mean for c in components]), components[0].mean))

    @property
    def variance(self) -> Tree:
        """The law of total variance: mean of the variances plus variance of the means."""
        within = self._average([c.variance for c in self.components])
        between = self._average([_squared_distance(c.mean, self.mean) for c in self.components])
        return {name: v + between[name] for name, v in within.items()}

    def sample(self, k: int, seed: int = 0) -> Tree:
        # The choice takes a key that no parameter and no component uses.
        uniform = torch.special.ndtr(normal(Key(seed, 0, k, len(self.mean) + 1), 1, dtype=torch.float64))
        chosen = int(torch.searchsorted(self.weights.cumsum(0), uniform).clamp(max=len(self.components) - 1))
        return self.components[chosen].sample(k, seed)

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        terms = torch.stack([c.log_prob(tree).cpu() for c in self.components])
        return torch.logsumexp(terms + self.weights.log(), 0)

    def as_family(self) -> MixtureOfGaussians:
        parts = [component.gaussian for component in self.components]
        names = parts[0].names
        means = [to_vector({name: q.mean[name] for name in names}).double() for q in parts]
        precisions = [reordered(q.precision_matrix(), q.mean, names).double() for q in parts]
        return MixtureOfGaussians.of(self.weights, torch.stack(means), torch.stack(precisions))

    def tensors(self) -> Tree:
        parts: Tree = {"weights": self.weights}
        for i, component in enumerate(self.components):
            parts |= pack(f"component{i}", component.tensors())
        return parts

    def settings(self) -> dict[str, Any]:
        return {"components": [{"kind": c.kind, **c.settings()} for c in self.components]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        components = [
            _COMPONENTS[part["kind"]].from_tensors(unpack(f"component{i}", tensors), part)
            for i, part in enumerate(settings["components"])
        ]
        return cls(tensors["weights"], components)

    def _average(self, trees: Sequence[Tree]) -> Tree:
        return _average(trees, self.weights.tolist())


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(Structure):
    """Several trained networks, each as likely as the others.

    Draw k is member k modulo their number, so that as many draws as members visit each one once. A member may carry
    floating-point buffers (batch-norm statistics) beside its parameters.

    Args:
        members: A tree for each network.
    """

    members: Sequence[Tree]
    mean: Tree = field(init=False)
    kind: ClassVar[str] = "ensemble"
    why_not: ClassVar[str] = "which is a handful of points without a density between them"

    def __post_init__(self) -> None:
        require(len(self.members) > 0, "members", "at least one", "none")
        members = tuple(owned(member, "member") for member in self.members)
        for member in members[1:]:
            check_same_shapes(member, members[0], "members")
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "mean", _like(_average(members, [1 / len(members)] * len(members)), members[0]))

    @property
    def distinct_draws(self) -> int:
        return len(self.members)

    @property
    def variance(self) -> Tree:
        distances = [_squared_distance(member, self.mean) for member in self.members]
        return _average(distances, [1 / len(distances)] * len(distances))

    def sample(self, k: int, seed: int = 0) -> Tree:
        return {name: t.clone() for name, t in self.members[k % len(self.members)].items()}

    def tensors(self) -> Tree:
        return {f"member{i}/{name}": t for i, member in enumerate(self.members) for name, t in member.items()}

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names), "members": len(self.members)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls([unpack(f"member{i}", tensors, settings["names"]) for i in range(settings["members"])])


def _average(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """The weighted sum, in float32 at least: squares of half precision would overflow."""
    pairs = list(zip(weights, trees, strict=True))
    return {
        name: reduce(torch.add, [w * tree[name].to(working(t)) for w, tree in pairs]) for name, t in trees[0].items()
    }


def _squared_distance(a: Tree, b: Tree) -> Tree:
    return {name: (a[name].to(working(t)) - t).square() for name, t in b.items()}


def _like(tree: Tree, other: Tree) -> Tree:
    return {name: t.to(other[name].dtype) for name, t in tree.items()}
