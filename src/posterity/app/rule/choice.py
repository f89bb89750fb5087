"""What a panel of the page is set to, and the rule that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from posterity.app.rule.landscapes import Landscape, Points, data_points, landscape
from posterity.errors import expected, require
from posterity.families import DiagonalGaussian, FixedGaussian, Gaussian, MixtureOfGaussians, SignBernoulli
from posterity.gradients import (
    AnyFamily,
    Curvature,
    DataLoss,
    Delta,
    DropoutMasks,
    Enumeration,
    Estimator,
    GaussNewton,
    Hessian,
    Loss,
    MonteCarlo,
    Quadrature,
    RelaxedBernoulli,
    SquaredGradients,
    Stein,
)
from posterity.rule import BayesianLearningRule

# For each family, the estimators that can move it; some are optimizers of posterity.optim.
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "point": ("point: Gaussian, fixed covariance", ("delta", "dropout", "sam")),
    "diagonal": ("Gaussian, diagonal", ("delta", "monte-carlo", "quadrature", "ivon", "vadam", "bsam", "variational")),
    "full": ("Gaussian, full", ("delta", "monte-carlo", "quadrature", "evon")),
    "mixture": ("mixture of two Gaussians", ("delta", "monte-carlo", "quadrature")),
    "signs": ("Bernoulli, ±1", ("enumeration", "relaxed", "delta-mode")),
}
ESTIMATORS = {
    "delta": "delta: at the mean",
    "monte-carlo": "Monte Carlo samples",
    "quadrature": "quadrature, exact",
    "dropout": "random dropout masks",
    "enumeration": "all states, exact",
    "relaxed": "Gumbel relaxation",
    "delta-mode": "delta at the mode (straight-through)",
    "sam": "SAM: the worst nearby",
    "ivon": "IVON, the optimizer",
    "vadam": "Vadam, the optimizer",
    "bsam": "bSAM, the optimizer",
    "variational": "Variational, the optimizer",
    "evon": "EVON, the optimizer",
}
CURVATURES = {
    "hessian": "Hessian",
    "squared": "squared gradient",
    "per-example": "squared gradients per example",
    "gauss-newton": "Gauss-Newton",
    "stein": "gradients alone (Stein)",
}
NODES = (150, 16)  # of quadrature, by dimensions
MOST_STEPS = 400


@dataclass(frozen=True)
class Choice:
    """The settings of one panel.

    Args:
        loss: Name of a landscape.
        family: Name of a family.
        estimator: Name of an estimator.
        curvature: The estimate of the Hessian.
        lr: ρ.
        momentum: β of heavy-ball momentum.
        temperature: τ, the weight of the entropy (of the Gumbel relaxation for "relaxed").
        steps: How many steps are computed.
        samples: Monte Carlo samples a step.
        retracted: Whether the precision moves by the retraction.
        slow_scale: β₂ of the precision.
        square_root: Whether the mean step divides by √S.
        debias: Whether running sums become averages.
        decay: Decoupled weight decay.
        keep: The keep probability of dropout.
        radius: SAM's ρ.
        minibatch: Examples a step; 0 for all of them.
        seed: Of everything random.
        precision: That of q at the start; 0 for the landscape's own.
        start: Where θ starts; None for the landscape's own.
        points: Data points; None for the landscape's own.
    """

    loss: str = "quadratic"
    family: str = "full"
    estimator: str = "delta"
    curvature: str = "hessian"
    lr: float = 0.1
    momentum: float = 0.0
    temperature: float = 1.0
    steps: int = 40
    samples: int = 4
    retracted: bool = False
    slow_scale: float | None = None
    square_root: bool = False
    debias: bool = False
    decay: float = 0.0
    keep: float = 0.5
    radius: float = 0.6
    minibatch: int = 0
    seed: int = 0
    precision: float = 0.0
    start: tuple[float, ...] | None = None
    points: Points | None = None

    def __post_init__(self) -> None:
        where = landscape(self.loss)
        require(self.family in FAMILIES, "family", f"one of {', '.join(FAMILIES)}", self.family)
        fitting = FAMILIES[self.family][1]
        fine = self.estimator in fitting
        require(fine, f"estimator of the family {self.family!r}", f"one of {', '.join(fitting)}", self.estimator)
        require(self.curvature in CURVATURES, "curvature", f"one of {', '.join(CURVATURES)}", self.curvature)
        require(1 <= self.steps <= MOST_STEPS, "steps", f"a number from 1 to {MOST_STEPS}", self.steps)
        require(1 <= self.samples <= 1000, "samples", "a number from 1 to 1000", self.samples)
        require(0.0 < self.lr <= 100.0, "lr", "a number above 0, at most 100", self.lr)
        require(0 <= self.seed < 2**31, "seed", "a whole number from 0", self.seed)
        require(0.0 <= self.precision <= 1e6, "precision", "a number from 0 to 1,000,000", self.precision)
        require(self.family != "signs" or where.dims == 2, "loss of signs", "one in two dimensions", self.loss)
        plane = where.dims == 2 or self.estimator != "evon"
        require(plane, "loss of EVON", "one in two dimensions, which it can rotate", self.loss)
        need = self.minibatch or self.curvature in ("per-example", "gauss-newton") or self.estimator == "variational"
        require(not need or where.data != "", "loss", "one with data, for minibatches and examples", self.loss)
        require(self.start is None or len(self.start) == where.dims, "start", f"{where.dims} numbers", self.start)
        near = self.start is None or all(abs(value) <= 100.0 for value in self.start)
        require(near, "start", "numbers between −100 and 100", self.start)
        random = self.estimator == "monte-carlo" or self.curvature != "stein"
        require(
            random, 'estimator of the curvature "stein"', "monte-carlo, as Stein's lemma needs draws", self.estimator
        )
        data_points(where, self.points)
        require(0 <= self.minibatch <= len(self.data), "minibatch", f"0 to {len(self.data)}", self.minibatch)

    def but(self, changes: Mapping[str, Any]) -> Choice:
        """The same with changes from outside, each checked."""
        return replace(self, **{name: _checked(name, value) for name, value in changes.items()})

    @property
    def where(self) -> Landscape:
        """The landscape."""
        return landscape(self.loss)

    @property
    def nodes(self) -> int:
        """Nodes of quadrature in each dimension."""
        return NODES[self.where.dims - 1]

    @property
    def data(self) -> Points:
        """The data points."""
        return data_points(self.where, self.points)

    @property
    def theta(self) -> Tensor:
        """Where θ starts."""
        return torch.tensor(self.where.start if self.start is None else self.start, dtype=torch.float64)

    def total(self) -> Loss:
        """ℓ(θ), the whole of it."""
        return self.where.make(self.data)

    def losses(self) -> Any:
        """The loss that the rule uses: the loss at every step, or one minibatch after another."""
        loss = self.total()
        if not self.minibatch:
            return loss
        assert isinstance(loss, DataLoss)
        return loss.minibatches(self.minibatch, seed=self.seed)

    def begin(self) -> AnyFamily:
        """q at the start."""
        theta, precision = self.theta, self.precision or self.where.precision
        unit = torch.eye(len(theta), dtype=torch.float64)
        if self.family == "point":
            return FixedGaussian(theta, unit)
        if self.family == "signs":
            return SignBernoulli(theta)
        if self.family == "diagonal":
            # The scale of RMSprop and Adam begins at nothing.
            scale = torch.finfo(torch.float64).tiny if self.square_root else precision
            return DiagonalGaussian(theta, torch.full_like(theta, scale))
        if self.family == "full":
            return Gaussian(theta, precision * unit)
        apart = torch.tensor([0.35, -0.1][: len(theta)], dtype=torch.float64) / math.sqrt(precision)
        means = torch.stack((theta - apart, theta + apart))
        return MixtureOfGaussians.of(theta.new_full((2,), 0.5), means, (precision * unit).expand(2, -1, -1))

    @property
    def entropy(self) -> float:
        """The weight of the entropy in what is minimised: τ, and nothing at the most probable signs."""
        return 0.0 if self.estimator == "delta-mode" else self.temperature

    def rule(self) -> BayesianLearningRule:
        """The rule with its estimator and options."""
        return BayesianLearningRule(
            self._gradient(),
            lr=self.lr,
            momentum=self.momentum,
            temperature=self.entropy,
            retracted=self.retracted,
            slow_scale=self.slow_scale,
            square_root=1e-8 if self.square_root else None,
            debias=self.debias,
            decay=self.decay,
        )

    def _gradient(self) -> Estimator:
        generator = torch.Generator().manual_seed(self.seed)
        made: dict[str, Any] = {
            "delta": lambda: Delta(self._curvature()),
            "delta-mode": lambda: Delta(at="mode"),
            "monte-carlo": lambda: MonteCarlo(self.samples, self._curvature(), generator),
            "quadrature": lambda: Quadrature(self.nodes),
            "dropout": lambda: DropoutMasks(self.keep, 1, generator),
            "enumeration": Enumeration,
            "relaxed": lambda: RelaxedBernoulli(self.samples, 1.0, generator),
        }
        if self.estimator not in made:
            raise expected("estimator", "one of the rule's own", self.estimator)
        gradient: Estimator = made[self.estimator]()
        return gradient

    def _curvature(self) -> Curvature:
        if self.curvature == "gauss-newton":
            return GaussNewton()
        if self.curvature == "hessian":
            return Hessian()
        if self.curvature == "stein":
            return Stein()
        return SquaredGradients(per_example=self.curvature == "per-example")

    def public(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)


_KINDS: dict[str, type] = {
    name: kind
    for kind, names in (
        (str, ("loss", "family", "estimator", "curvature")),
        (int, ("steps", "samples", "minibatch", "seed")),
        (bool, ("retracted", "square_root", "debias")),
        (float, ("lr", "momentum", "temperature", "decay", "keep", "radius", "precision")),
    )
    for name in names
}


def _checked(name: str, value: Any) -> Any:
    """A setting from outside in its own type, or an error."""
    if name not in {field.name for field in fields(Choice)}:
        raise expected("setting", f"one of {', '.join(field.name for field in fields(Choice))}", name)
    if name == "slow_scale":
        return None if value is None else _number(name, value)
    if name == "start":
        return None if value is None else _row(name, value)
    if name == "points":
        require(value is None or isinstance(value, list), "points", "a list of points", value)
        return None if value is None else tuple(_row("point", point) for point in value)
    kind = _KINDS[name]
    if kind is float:
        return _number(name, value)
    require(type(value) is kind, name, {str: "a text", int: "a whole number", bool: "true or false"}[kind], value)
    return value


def _number(name: str, value: Any) -> float:
    require(type(value) in (int, float) and math.isfinite(value), name, "a finite number", value)
    return float(value)


def _row(name: str, value: Any) -> tuple[float, ...]:
    require(isinstance(value, (list, tuple)) and len(value) <= 3, name, "up to three numbers", value)
    return tuple(_number(name, entry) for entry in value)
