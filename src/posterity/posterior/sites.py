"""Sites: what data contribute to the natural parameters of a Gaussian, and how they add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import InvalidInput, require
from posterity.linalg import cholesky, solve_psd
from posterity.posterior._structure import Structure, reordered
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.last_layer import LastLayer
from posterity.trees import Tree, check_same_shapes, from_vector, to_vector


@dataclass(frozen=True, eq=False, repr=False)
class Site:
    """An amount (b, A) of natural parameters: the factor exp(bᵀθ − ½θᵀAθ) that data multiply to a density.

    Sites add, subtract and scale as vectors do. A prior plus the sites of its data is the posterior; adding a site
    adds the data it came from, subtracting removes them.

    Args:
        linear: b, a tensor for each parameter.
        precision: A, its diagonal (a tree shaped as b) or one dense matrix; it need not be positive.
        n: Number of examples that the site represents.
        ess: Effective sample size it counts for.

    Examples:
        >>> prior = Diagonal({"w": torch.zeros(1)}, {"w": torch.ones(1)})
        >>> data = Site({"w": torch.tensor([2.0])}, {"w": torch.tensor([3.0])})
        >>> (prior + data).mean, (prior + data).precision
        ({'w': tensor([0.5000])}, {'w': tensor([4.])})
    """

    linear: Tree
    precision: Tree | Tensor
    n: float = 0.0
    ess: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.precision, Tensor):
            size = sum(t.numel() for t in self.linear.values())
            shape = tuple(self.precision.shape)
            require(shape == (size, size), "site precision", f"shape {(size, size)}", shape)
        else:
            check_same_shapes(self.precision, self.linear, "site precision")

    def __repr__(self) -> str:
        shape = "full" if isinstance(self.precision, Tensor) else "diagonal"
        return f"Site({shape}, {len(self.linear)} tensors, n={self.n:g}, ess={self.ess:g})"

    def __add__(self, other: Site) -> Site:
        if not isinstance(other, Site):
            return NotImplemented
        check_same_shapes(other.linear, self.linear, "site")
        linear = _sum(self.linear, other.linear)
        n, ess = self.n + other.n, self.ess + other.ess
        if isinstance(self.precision, Tensor) or isinstance(other.precision, Tensor):
            return Site(linear, self._matrix(self.linear) + other._matrix(self.linear), n, ess)
        return Site(linear, _sum(self.precision, other.precision), n, ess)

    def __sub__(self, other: Site) -> Site:
        return self + other.scaled(-1.0) if isinstance(other, Site) else NotImplemented

    def __radd__(self, prior: Structure) -> Structure:
        return gaussian(natural(prior) + self, prior) if isinstance(prior, Structure) else NotImplemented

    def __rsub__(self, whole: Structure) -> Structure:
        return whole + self.scaled(-1.0) if isinstance(whole, Structure) else NotImplemented

    def scaled(self, factor: float) -> Site:
        """The site times a number: a half is what half as many examples would have contributed."""
        precision = self.precision
        return Site(
            {name: factor * b for name, b in self.linear.items()},
            factor * precision if isinstance(precision, Tensor) else {k: factor * a for k, a in precision.items()},
            factor * self.n,
            factor * self.ess,
        )

    def _matrix(self, names: Iterable[str]) -> Tensor:
        """A as one dense matrix, in this order of the parameters."""
        if isinstance(self.precision, Tensor):
            return reordered(self.precision, self.linear, names)
        return torch.diag(torch.cat([self.precision[name].reshape(-1) for name in names]))


def natural(structure: Structure) -> Site:
    """The natural parameters (Pm, P) of a diagonal or full Gaussian, or of a last layer, as a site."""
    if isinstance(structure, LastLayer):
        return natural(structure.inner)
    if isinstance(structure, Diagonal):
        precision = structure.precision_diagonal()
        return Site({name: p * structure.mean[name] for name, p in precision.items()}, precision)
    if isinstance(structure, Full):
        mean = to_vector(structure.mean).to(structure.precision)
        return Site(from_vector(structure.precision @ mean, structure.mean), structure.precision)
    raise structure.undefined("natural parameters")


def gaussian(site: Site, like: Structure) -> Structure:
    """The Gaussian with these natural parameters; where `like` is a last layer, with its fixed parameters below."""
    if isinstance(like, LastLayer):
        inner = gaussian(site, like.inner)
        assert isinstance(inner, Diagonal | Full)
        return LastLayer(inner, like.rest)
    if isinstance(site.precision, Tensor):
        mean = solve_psd(cholesky(site.precision, "precision"), to_vector(site.linear).to(site.precision))
        return Full(from_vector(mean, site.linear), site.precision)
    for name, a in site.precision.items():
        if not bool((a > 0).all()):
            raise InvalidInput(
                f"precision of {name!r}: expected a positive sum of sites, got {a.min().item():.3g}; "
                "more was removed than was there"
            )
    return Diagonal({name: b / site.precision[name] for name, b in site.linear.items()}, site.precision)


def _sum(a: Tree, b: Tree) -> Tree:
    return {name: t + b[name] for name, t in a.items()}
