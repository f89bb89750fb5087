"""Random signs: independent weights in {−1, 1}, the posterior of binary networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.families import SignBernoulli
from posterity.posterior._structure import Structure, owned, pack, standard_normal, total, unpack
from posterity.trees import Tree, check_same_shapes, to_vector


@dataclass(frozen=True, eq=False, repr=False)
class Signs(Structure):
    """Independent weights w ∈ {−1, 1} with natural parameters λ: P(w = 1) = σ(2λ), mean μ = tanh λ.

    Args:
        natural: λ for each parameter; large values are nearly certain signs.

    Examples:
        >>> signs = Signs({"w": torch.tensor([0.0, 5.0, -5.0])})
        >>> signs.sample(0)["w"][1:]
        tensor([ 1., -1.])
    """

    natural: Tree
    mean: Tree = field(init=False)
    kind: ClassVar[str] = "signs"
    why_not: ClassVar[str] = "whose weights are −1 or 1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "natural", owned(self.natural, "natural"))
        object.__setattr__(self, "mean", {name: t.tanh() for name, t in self.natural.items()})

    @property
    def mode(self) -> Tree:
        """The likelier sign of each weight."""
        return {name: torch.where(t >= 0, 1.0, -1.0).to(t) for name, t in self.natural.items()}

    @property
    def variance(self) -> Tree:
        return {name: t.cosh().square().reciprocal() for name, t in self.natural.items()}

    def sample(self, k: int, seed: int = 0) -> Tree:
        uniform = {name: torch.special.ndtr(z) for name, z in standard_normal(self.natural, k, seed).items()}
        return {
            name: torch.where(uniform[name] < (2 * t).sigmoid(), 1.0, -1.0).to(t) for name, t in self.natural.items()
        }

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        """Σ log σ(2λw), for signs w."""
        check_same_shapes(tree, self.natural, "log_prob")
        return total(F.logsigmoid(2 * t * tree[name].to(t)) for name, t in self.natural.items())

    def entropy(self) -> Tensor:
        """−Σ [ p log p + (1 − p) log(1 − p) ], p = σ(2λ), in nats."""
        return -total(s.sigmoid() * F.logsigmoid(s) for t in self.natural.values() for s in (2 * t, -2 * t))

    def kl(self, other: Structure) -> Tensor:
        """Σ [ p log(p/p') + (1 − p) log((1 − p)/(1 − p')) ]."""
        if not isinstance(other, Signs):
            raise self.undefined(f"kl to the structure {other.kind!r}")
        check_same_shapes(other.natural, self.natural, "kl")
        pairs = [(t, other.natural[name].to(t)) for name, t in self.natural.items()]
        return total(
            (s * a).sigmoid() * (F.logsigmoid(s * a) - F.logsigmoid(s * b)) for a, b in pairs for s in (2.0, -2.0)
        )

    def as_family(self) -> SignBernoulli:
        return SignBernoulli(to_vector(self.natural).double())

    def tensors(self) -> Tree:
        return pack("natural", self.natural)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(unpack("natural", tensors, settings["names"]))
