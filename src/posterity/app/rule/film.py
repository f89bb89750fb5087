"""A film: q after every step of a run, and the loss that it moves on, as numbers that the page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posterity.app.rule.landscapes import Landscape
from posterity.families import DiagonalGaussian, FixedGaussian, Gaussian, MixtureOfGaussians, SignBernoulli
from posterity.gradients import AnyFamily, Loss
from posterity.gradients._base import values_at

ACROSS = (241,), (81, 61)  # points of the grid of densities, by dimensions
FINE = (241,), (121, 91)  # of the loss, whose contours are drawn
FAR = 1e9  # a variance beyond which q is as good as flat
DRAWS = 14  # lines drawn from q over the data
DIGITS = {"density": 3, "curve": 4, "lines": 4, "surface": 5}  # of what is only drawn; numbers that are shown have six


@dataclass(frozen=True)
class Frame:
    """q after a step.

    Args:
        weights: Of the components.
        means: Of the components, each with an entry for each axis.
        covariances: Of the components: (v,) or (v₁₁, v₁₂, v₂₂); none where q is a point.
        note: Further remarks, in a few words.
        energy: E_q[ℓ] − τ H(q), or the loss where q is a point; None where it is not computed.
        masses: Probabilities of the corners (−,−), (−,+), (+,−), (+,+), where q is over signs.
        density: q on the grid, for families that are no Gaussians.
        curve: What the rule uses in place of the loss (one dimension): E_q[ℓ] for each mean, or SAM's worst value.
        lines: Lines over the data, drawn from q.
        seen: How many of the data points have been seen; None for all of them.
    """

    weights: list[float] = field(default_factory=list)
    means: list[list[float]] = field(default_factory=list)
    covariances: list[list[float]] = field(default_factory=list)
    note: str = ""
    energy: float | None = None
    masses: list[float] | None = None
    density: list[float] | None = None
    curve: list[float] | None = None
    lines: list[list[list[float]]] | None = None
    seen: int | None = None


@dataclass(frozen=True)
class Film:
    """All frames and their background.

    Args:
        domain: The part of the plane that is drawn.
        axes: Names of its axes.
        frames: q at the start and after each step.
        surface: The loss on a grid over the domain, row by row; none where nothing is drawn.
        data: Data points, (x, y) or (x, y, class).
        data_kind: "classes", "line" or "cloud" (points in the same plane as q).
        data_domain: The part of the data's plane that is drawn, where it is another one.
        data_axes: Names of its axes.
        measure: What the energy is called.
        line_kind: What the lines over the data are: "draws" from q, or a "band" of a middle, a lower and an upper one.
        hollow: Whether the width of q is only a scale of the steps, as Adam's, and is drawn as a line alone.
    """

    domain: tuple[tuple[float, float], ...]
    axes: tuple[str, ...]
    frames: list[Frame]
    surface: list[float] | None = None
    data: Sequence[Sequence[float]] = ()
    data_kind: str = ""
    data_domain: tuple[tuple[float, float], ...] = ()
    data_axes: tuple[str, str] = ("x₁", "x₂")
    measure: str = "free energy E[ℓ] − H(q)"
    line_kind: str = "draws"
    hollow: bool = False

    def public(self) -> dict[str, Any]:
        """As JSON: what all frames have in common once, numbers rounded to six digits."""
        names = ("weights", "means", "covariances", "note", "energy", "masses", "density", "curve", "lines", "seen")
        columns = {
            name: [rounded(getattr(frame, name), DIGITS.get(name, 6)) for frame in self.frames] for name in names
        }
        return {
            "domain": self.domain,
            "axes": self.axes,
            "surface": rounded(self.surface, DIGITS["surface"]),
            "across": (ACROSS if self.surface is None else FINE)[len(self.domain) - 1] if self.domain else [],
            "data": rounded(self.data),
            "dataKind": self.data_kind,
            "dataDomain": self.data_domain,
            "dataAxes": self.data_axes,
            "measure": self.measure,
            "lineKind": self.line_kind,
            "hollow": self.hollow,
            "steps": len(self.frames) - 1,
            **{name: column for name, column in columns.items() if any(value for value in column)},
        }


def rounded(value: Any, digits: int = 6) -> Any:
    """Numbers with so many digits; what is not finite, or too far away to be drawn, becomes nothing."""
    if isinstance(value, (list, tuple)):
        return [rounded(entry, digits) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if abs(value) < FAR else None
    return value


def grid(domain: Sequence[tuple[float, float]], across: tuple[tuple[int, ...], ...] = ACROSS) -> Tensor:
    """The points of the grid over a domain, (points, d), the first axis running fastest."""
    counts = across[len(domain) - 1]
    ticks = [torch.linspace(*ends, n, dtype=torch.float64) for ends, n in zip(domain, counts, strict=True)]
    if len(ticks) == 1:
        return ticks[0][:, None]
    y, x = torch.meshgrid(ticks[1], ticks[0], indexing="ij")
    return torch.stack((x, y), -1).reshape(-1, 2)


def surface(loss: Loss, domain: Sequence[tuple[float, float]]) -> list[float]:
    """The loss on the grid."""
    found: list[float] = values_at(loss, grid(domain, FINE)).tolist()
    return found


def describe(q: AnyFamily, **more: Any) -> Frame:
    """A frame of q."""
    if isinstance(q, SignBernoulli):
        chances = q.log_prob(torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64)).exp()
        return Frame([1.0], [q.mean.tolist()], masses=chances.tolist(), **more)
    if isinstance(q, FixedGaussian):
        return Frame([1.0], [q.mean.tolist()], **more)
    if isinstance(q, MixtureOfGaussians):
        return Frame(q.weights.tolist(), q.conditional.mean.tolist(), _corners(q.conditional.covariance), **more)
    assert isinstance(q, Gaussian | DiagonalGaussian)
    covariance = torch.diag(q.variance) if isinstance(q, DiagonalGaussian) else q.covariance
    return Frame([1.0], [q.mean.tolist()], _corners(covariance[None]), **more)


def _corners(covariances: Tensor) -> list[list[float]]:
    """(v,) or (v₁₁, v₁₂, v₂₂) of each."""
    if covariances.shape[-1] == 1:
        return [[float(v)] for v in covariances[:, 0, 0]]
    return [[float(v[0, 0]), float(v[0, 1]), float(v[1, 1])] for v in covariances]


def thetas(q: AnyFamily, count: int = DRAWS) -> Tensor:
    """Some θ ~ q with the same noise in every frame, so that lines glide instead of flickering."""
    if isinstance(q, FixedGaussian):
        return q.mean[None]
    drawn: Tensor = q.sample(count, torch.Generator().manual_seed(7))
    return drawn


def boundaries(where: Landscape, draws: Iterable[Tensor], reach: float) -> list[list[list[float]]]:
    """The line of each θ over the data: where a classifier changes its mind, or the regression itself."""
    lines = []
    for theta in draws:
        a, b = theta.tolist()
        if where.data == "counts":
            x = [reach * (k / 20.0 - 1.0) for k in range(41)]
            lines.append([[at, math.exp(min(a + b * at, 20.0))] for at in x])
        elif where.data == "line":
            lines.append([[-reach, a - b * reach], [reach, a + b * reach]])
        else:
            length = max((a * a + b * b) ** 0.5, 1e-9)
            right, up = -b / length * 2.0 * reach, a / length * 2.0 * reach
            lines.append([[right, up], [-right, -up]])
    return lines
