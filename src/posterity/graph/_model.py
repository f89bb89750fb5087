"""A model: variables with their priors, and the factors between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from posterity.errors import expected, require
from posterity.families import Family
from posterity.graph._factor import Belief, Beliefs, Factor, batch_shape
from posterity.graph.modes import PointMass


@dataclass(frozen=True)
class Model:
    """p(x, z) = Π_i p(x_i) Π_a f_a(x, z), over variables of exponential families.

    Plates are batch axes: K components are one variable, a family with K members; data are rows of a factor.

    Args:
        priors: The variables that all data share, each with its prior; None where factors alone determine it.
        factors: The factors.
        local: Variables with a member for each row of the data, by the prior of one member.

    Examples:
        >>> import torch
        >>> from posterity.families import Gamma
        >>> from posterity.graph import Observed, poisson, vmp
        >>> counts = torch.tensor([[3.0], [5.0], [4.0]])
        >>> model = Model({"rate": Gamma([1.0], [0.5])}, [Observed("rate", poisson(counts))])
        >>> vmp(model).q["rate"].mean  # (1 + 12) / (0.5 + 3)
        tensor([3.7143], dtype=torch.float64)
    """

    priors: Mapping[str, Family | None]
    factors: Sequence[Factor]
    local: Mapping[str, Family] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(len(self.factors) > 0, "factors", "at least one", "none")
        for factor in self.factors:
            require(isinstance(factor, Factor), "factors", "factors that know their messages", type(factor).__name__)
        touched = {name for factor in self.factors for name in factor.neighbours}
        for name in (*self.priors, *self.local):
            require(name in touched, f"variable {name!r}", "a factor that touches it", "none")
        sizes = {factor.size for factor in self.factors if factor.size is not None}
        require(len(sizes) <= 1, "factors", "one plate of data, with the same rows", sorted(sizes))
        require(not self.local or len(sizes) == 1, "local variables", "a factor with rows", "none")

    @property
    def size(self) -> int | None:
        """Rows of the data, N."""
        return next((factor.size for factor in self.factors if factor.size is not None), None)

    def start(self, given: Beliefs | None = None, point: bool = False) -> dict[str, Belief]:
        """Where inference begins: at what is given, elsewhere at the prior; every factor is asked whether it fits."""
        given, start = dict(given or {}), dict[str, Belief]()
        for name, prior in self.priors.items():
            begin = given.pop(name, prior)
            if begin is None:
                raise expected(f"start of {name!r}", "a member of its family, as it has no prior", None)
            family = begin.family if isinstance(begin, PointMass) else begin
            if prior is not None and not prior.same_family(family):
                raise expected(f"start of {name!r}", f"a member of the family of its prior {prior!r}", family)
            start[name] = PointMass(family) if point else family
        require(not given, "start", f"names among {sorted(self.priors)}", sorted(given))
        start |= {name: self._rows(prior) for name, prior in self.local.items()}
        for factor in self.factors:
            factor.check({name: _family(q) for name, q in start.items()})
        return start

    def take(self, rows: Tensor) -> Self:
        """The same model on some rows of its data."""
        factors = [f if f.size is None else f.take(rows) for f in self.factors]
        return replace(self, factors=factors)

    def given(self, q: Beliefs) -> Self:
        """The model of tomorrow: today's posteriors are its priors."""
        return replace(self, priors={name: _family(q[name]) for name in self.priors})

    def groups(self) -> list[list[str]]:
        """The shared variables in the order of their updates; those that all factors keep apart go together."""
        groups: list[list[str]] = []
        for name in self.priors:
            if groups and not any(self._entangled(name, other) for other in groups[-1]):
                groups[-1].append(name)
            else:
                groups.append([name])
        return groups

    def prior(self, name: str) -> Family | None:
        """The prior of a variable, shared or local."""
        return self.priors[name] if name in self.priors else self._rows(self.local[name])

    def _entangled(self, a: str, b: str) -> bool:
        return any({a, b} <= set(f.neighbours) and not f.separable for f in self.factors)

    def _rows(self, prior: Family) -> Family:
        """One member for each row of the data."""
        require(batch_shape(prior) == (), "prior of a local variable", "one member", batch_shape(prior))
        assert self.size is not None
        return prior.with_natural(tuple(block.expand(self.size, *block.shape) for block in prior.natural))


def _family(belief: Belief) -> Family:
    return belief.family if isinstance(belief, PointMass) else belief
