"""Projection between structures: the Gaussian of another shape that replaces this one."""

from __future__ import annotations

from typing import Literal

from posterity.errors import expected
from posterity.posterior._structure import GaussianStructure, Structure
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.last_layer import LastLayer


def project(structure: Structure, to: Literal["diagonal", "full"]) -> Structure:
    """A Gaussian with the same mean and another structure.

    "diagonal" keeps the diagonal of the precision, which is what a posterior leaves as a prior for a simpler
    structure: the conditional width of each weight. The marginal variances, which are larger, are not kept.
    "full" writes the same Gaussian as a dense matrix. A last layer stays one.
    """
    if to not in ("diagonal", "full"):
        raise expected("structure", "'diagonal' or 'full'", to)
    if isinstance(structure, LastLayer):
        return LastLayer(_project(structure.inner, to), structure.rest)
    if not isinstance(structure, GaussianStructure):
        raise structure.undefined(f"projection to {to!r}")
    return _project(structure, to)


def diagonal(structure: Structure, what: str) -> Diagonal:
    """The Gaussian over all parameters with the diagonal of a structure's precision, or an error about `what`."""
    found = project(structure, "diagonal")
    if not isinstance(found, Diagonal):
        raise expected(what, "a posterior over all parameters", f"one of the structure {structure.kind!r}")
    return found


def _project(structure: GaussianStructure, to: str) -> Diagonal | Full:
    if to == "diagonal":
        return Diagonal(structure.mean, structure.precision_diagonal())
    return Full(structure.mean, structure.precision_matrix())
