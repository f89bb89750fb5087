"""The losses that the page offers: in one dimension or two, some with data points that can be dragged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.gradients import DataLoss, LinearLoss, Loss
from posterity.likelihoods import GaussianLikelihood

Points = Sequence[Sequence[float]]
MOST_POINTS = 100


@dataclass(frozen=True)
class Landscape:
    """A loss ℓ(θ) and how to look at it.

    Args:
        title: Its name for the reader.
        formula: ℓ(θ), written out.
        domain: The part of θ-space that is drawn, one pair for each axis.
        start: Where θ begins.
        make: The loss, given the data points (none for losses without data).
        axes: Names of the axes of θ.
        data: What the data are: points of two classes, points beside a line, or counts; "" for none.
        points: The data to begin with: (x₁, x₂, class) or (x, y).
        precision: That of q at the start, in a scale that suits the picture.
    """

    title: str
    formula: str
    domain: tuple[tuple[float, float], ...]
    start: tuple[float, ...]
    make: Callable[[Points], Loss]
    axes: tuple[str, ...] = ("θ₁", "θ₂")
    data: Literal["", "classes", "line", "counts"] = ""
    points: Points = ()
    precision: float = 2.0

    @property
    def dims(self) -> int:
        """Entries of θ."""
        return len(self.domain)


def _tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _quadratic(_: Points) -> Loss:
    bend, centre = _tensor([[3.0, 1.5], [1.5, 1.1]]), _tensor([0.8, -0.4])
    return lambda theta: 0.5 * (theta - centre) @ bend @ (theta - centre)


def _double_well(_: Points) -> Loss:
    return lambda theta: (2.0 * (theta**2 - 1.0) ** 2 + 0.35 * theta).sum()


def _wells(_: Points) -> Loss:
    """Two modes at (−1.5, 0.3) and (1.5, −0.3)."""

    def loss(theta: Tensor) -> Tensor:
        x, y = theta[0], theta[1] + 0.2 * theta[0]
        return 0.6 * (x**2 - 2.25) ** 2 / 2.25 + 1.2 * y**2

    return loss


def _banana(_: Points) -> Loss:
    def loss(theta: Tensor) -> Tensor:
        x, y = theta[0], theta[1]
        return x**2 / 3.0 + 3.0 * (y - 0.5 * x**2 + 1.0) ** 2

    return loss


def _waves(_: Points) -> Loss:
    """A bowl with many dents, the deepest beside the middle."""

    def loss(theta: Tensor) -> Tensor:
        bowl = 0.25 * (theta - 0.4) ** 2
        return (bowl + 0.9 * torch.sin(2.6 * theta + 0.6) + 0.45 * torch.cos(5.3 * theta)).sum() + 1.2

    return loss


def _noisy_ridge(_: Points) -> Loss:
    """A long slanting valley whose floor is full of ripples."""

    def loss(theta: Tensor) -> Tensor:
        along, across = (theta[0] + theta[1]) / 2**0.5, (theta[1] - theta[0]) / 2**0.5
        ripples = torch.cos(7.0 * along) + torch.cos(6.0 * across + 2.0 * along)
        return 0.25 * (along - 1.2) ** 2 + 1.5 * across**2 + 0.35 * (2.0 + ripples)

    return loss


def _valleys(_: Points) -> Loss:
    """A wide valley with its floor at 1, and a narrow hole at −1 that goes deeper."""
    return lambda theta: (0.72 * (theta - 1.0) ** 2 - 4.0 * torch.exp(-25.0 * (theta + 1.0) ** 2)).sum()


def _signs(_: Points) -> Loss:
    """A pull on two signs that would rather agree."""
    pull = _tensor([0.9, -0.5])
    return lambda theta: -(pull * theta).sum() - 1.1 * theta[0] * theta[1] + 0.2 * (theta**2).sum()


def _ridge_penalty(theta: Tensor) -> Tensor:
    return 0.25 * (theta**2).sum()


def _logistic(points: Points) -> DataLoss:
    rows = _tensor(points)
    return LinearLoss(inputs=rows[:, :2], targets=rows[:, 2], likelihood="bernoulli", regulariser=_ridge_penalty)


def _line(points: Points) -> DataLoss:
    rows = _tensor(points)
    inputs = torch.stack((torch.ones_like(rows[:, 0]), rows[:, 0]), 1)
    noise = GaussianLikelihood(4.0)
    return LinearLoss(inputs=inputs, targets=rows[:, 1], likelihood=noise, regulariser=_ridge_penalty)


def _counts(points: Points) -> DataLoss:
    rows = _tensor(points)
    inputs = torch.stack((torch.ones_like(rows[:, 0]), rows[:, 0]), 1)
    return LinearLoss(inputs=inputs, targets=rows[:, 1], likelihood="poisson", regulariser=_ridge_penalty)


_CLASSES: Points = (
    (1.4, 0.9, 1), (0.6, 1.5, 1), (1.9, -0.3, 1), (0.3, 0.5, 1), (1.1, 1.9, 1), (-0.5, 1.0, 1),
    (-1.3, -0.8, 0), (-0.4, -1.6, 0), (-1.8, 0.3, 0), (0.5, -0.7, 0), (-1.0, -1.7, 0), (-0.6, 0.2, 0),
)  # fmt: skip
_BESIDE: Points = ((-1.6, -1.1), (-1.1, -0.3), (-0.5, -0.4), (0.2, 0.5), (0.8, 0.4), (1.3, 1.3), (1.7, 1.0))
_COUNTED: Points = ((-2.0, 0), (-1.4, 1), (-0.9, 0), (-0.3, 1), (0.2, 1), (0.8, 3), (1.2, 2), (1.7, 5), (2.1, 6))

_WIDE = ((-2.6, 2.6), (-2.0, 2.0))
LANDSCAPES: dict[str, Landscape] = {
    "quadratic": Landscape(
        "quadratic", "ℓ(θ) = ½ (θ − c)ᵀ A (θ − c)", ((-2.6, 3.0), (-2.6, 2.6)), (-1.9, 1.2), _quadratic
    ),
    "double-well": Landscape(
        "double well", "ℓ(θ) = 2 (θ² − 1)² + 0.35 θ", ((-2.1, 2.1),), (1.75,), _double_well, ("θ",), precision=20.0
    ),
    "two-modes": Landscape("two modes", "ℓ(θ) = 0.27 (θ₁² − 2.25)² + 1.2 (θ₂ + 0.2 θ₁)²", _WIDE, (0.4, 1.2), _wells),
    "banana": Landscape("banana", "ℓ(θ) = ⅓ θ₁² + 3 (θ₂ − ½ θ₁² + 1)²", _WIDE, (-1.9, -1.2), _banana),
    "multimodal": Landscape(
        "multimodal", "ℓ(θ) = ¼ (θ − 0.4)² + 0.9 sin(2.6 θ + 0.6) + 0.45 cos 5.3 θ", ((-4.6, 4.6),), (3.9,), _waves,
        ("θ",), precision=4.0,
    ),
    "noisy-ridge": Landscape(
        "noisy ridge", "ℓ(θ) = ¼ (u − 1.2)² + 1.5 v² + ripples", ((-2.7, 2.7), (-2.4, 2.4)), (-1.9, -1.3), _noisy_ridge
    ),
    "valleys": Landscape(
        "narrow and wide valley", "ℓ(θ) = 0.72 (θ − 1)² − 4 exp(−25 (θ + 1)²)", ((-2.2, 3.2),), (-1.0,), _valleys,
        ("θ",), precision=3.0,
    ),
    "logistic": Landscape(
        "logistic regression", "ℓ(θ) = Σᵢ log(1 + exp(−yᵢ θᵀxᵢ)) + ¼ |θ|²", ((-1.4, 4.2), (-1.4, 4.2)), (-0.6, -0.2),
        _logistic, ("θ₁", "θ₂"), "classes", _CLASSES, 1.0,
    ),
    "line": Landscape(
        "linear regression", "ℓ(θ) = 2 Σᵢ (yᵢ − θ₁ − θ₂ xᵢ)² + ¼ |θ|²", ((-1.6, 1.6), (-1.4, 2.2)), (-1.1, -0.8),
        _line, ("intercept θ₁", "slope θ₂"), "line", _BESIDE, 1.0,
    ),
    "counts": Landscape(
        "Poisson regression", "ℓ(θ) = Σᵢ exp(fᵢ) − yᵢ fᵢ + ¼ |θ|²,  fᵢ = θ₁ + θ₂ xᵢ", ((-1.6, 1.6), (-0.8, 2.0)),
        (-1.1, 1.5), _counts, ("θ₁", "θ₂"), "counts", _COUNTED, 4.0,
    ),
    "signs": Landscape(
        "two signs", "ℓ(θ) = −0.9 θ₁ + 0.5 θ₂ − 1.1 θ₁ θ₂", ((-1.5, 1.5), (-1.5, 1.5)), (-0.6, 0.5), _signs
    ),
}  # fmt: skip


def landscape(name: str) -> Landscape:
    """The landscape of this name."""
    if name not in LANDSCAPES:
        raise expected("loss", f"one of {', '.join(LANDSCAPES)}", name)
    return LANDSCAPES[name]


def data_points(where: Landscape, points: Points | None) -> Points:
    """The data of a landscape: those given, checked, or its own."""
    if points is None:
        return where.points
    width = 3 if where.data == "classes" else 2
    require(where.data != "", "points", f"none for {where.title!r}, which has no data", len(points))
    require(1 <= len(points) <= MOST_POINTS, "points", f"1 to {MOST_POINTS} points", len(points))
    for point in points:
        require(len(point) == width, "point", f"{width} numbers", len(point))
        require(all(abs(value) <= 100.0 for value in point), "point", "numbers between −100 and 100", list(point))
        require(width == 2 or point[2] in (0, 1), "class of a point", "0 or 1", point[-1])
        count = point[1] >= 0 and point[1] == int(point[1])
        require(where.data != "counts" or count, "count of a point", "a whole number from 0", point[1])
    return points
