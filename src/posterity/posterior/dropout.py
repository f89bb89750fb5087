"""The posterior of MC dropout: fixed weights, and Bernoulli masks on the activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from posterity.errors import expected, require
from posterity.noise import Key, words
from posterity.posterior._structure import Structure, owned, pack, unpack
from posterity.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Dropout(Structure):
    """Weights and the dropout modules that stay switched on.

    Every draw has the same weights; what differs is the mask, which belongs to the activations and follows from
    `mask_seed(k, seed)`.

    Args:
        mean: The trained weights.
        rates: For the name of each dropout module, the probability that a unit is dropped.

    References:
        Gal and Ghahramani, "Dropout as a Bayesian approximation", 2016.
    """

    mean: Tree
    rates: Mapping[str, float]
    kind: ClassVar[str] = "dropout"
    why_not: ClassVar[str] = "whose randomness lies in masks on the activations, not in a density over the weights"

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "rates", "at least one dropout module", "none")
        for name, rate in self.rates.items():
            require(0 <= rate < 1, f"dropout rate of {name!r}", "a probability in [0, 1)", rate)
        object.__setattr__(self, "mean", owned(self.mean, "mean"))
        object.__setattr__(self, "rates", {name: float(rate) for name, rate in self.rates.items()})

    @property
    def variance(self) -> Tree:
        raise self.undefined("variance")

    def sample(self, k: int, seed: int = 0) -> Tree:
        return {name: t.clone() for name, t in self.mean.items()}

    def mask_seed(self, k: int, seed: int = 0) -> int:
        """The seed (64 bits) of the masks of draw k."""
        require(k >= 0, "draw number", "an integer >= 0", k)
        high, low = words(Key(seed, 0, k))
        return (high & 0x7FFFFFFF) << 32 | (low & 0xFFFFFFFF)

    def tensors(self) -> Tree:
        return pack("mean", self.mean)

    def settings(self) -> dict[str, Any]:
        return {"names": list(self.names), "rates": dict(self.rates)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(unpack("mean", tensors, settings["names"]), settings["rates"])


def require_mask(name: str, module: nn.Module) -> None:
    """Raise unless a module sets units to zero and does nothing else, which is what masks by number can represent."""
    if not isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
        raise expected(f"module {name!r}", "nn.Dropout, Dropout1d, Dropout2d or Dropout3d", type(module).__name__)
