"""What the rows of optimizers share: a small task, the draws of an optimizer, and the rule in two half steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.families import Coordinates, DiagonalGaussian, FixedGaussian
from posterity.gradients import AtPoints, Curvature, DataLoss, Loss
from posterity.optim import VOGN, VariationalOptimizer
from posterity.rule import BayesianLearningRule, State
from posterity.table.comparisons._data import classification

N, D, STEPS = 12, 3, 8
DELTA, START = 0.3, 1.5  # weight decay, and the curvature at the start
LR, RATE = 0.2, 0.1  # the steps of the mean and of the precision


@dataclass(frozen=True)
class Exercise:
    """A logistic regression, as a layer and as a loss of flat weights."""

    model: nn.Linear
    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, outputs: int = 1) -> Exercise:
        """With so many labels an example, all the same."""
        inputs, targets = classification(n=N, d=D)
        model = nn.Linear(D, outputs, bias=False, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(torch.linspace(0.4, -0.3, outputs * D, dtype=torch.float64).view(outputs, D))
        return cls(model, inputs, targets[:, None].expand(N, outputs))

    @property
    def weights(self) -> Tensor:
        """The present weights, flat."""
        return self.model.weight.detach().reshape(-1).clone()

    def backward(self, rows: slice = slice(None)) -> None:
        """Take the gradient of the mean loss of examples at the present weights."""
        targets = self.targets[rows]
        loss = F.binary_cross_entropy_with_logits(self.model(self.inputs[rows]), targets, reduction="sum")
        (loss / len(targets)).backward()

    def total(self, rows: slice = slice(None)) -> DataLoss:
        """The sum over examples, without a prior."""
        shape = self.model.weight.shape
        return DataLoss(
            inputs=self.inputs[rows],
            targets=self.targets[rows],
            likelihood="bernoulli",
            model=lambda theta, x: x @ theta.view(shape).T,
        )

    def pulled(self, mean: Tensor, delta: float = DELTA) -> Loss:
        """The sum over examples and the prior's pull, whose gradient λδm is that at the mean for every θ."""
        total, force = self.total(), N * delta * mean
        return lambda theta: total(theta) + force @ theta


def draws(task: Exercise, optimizer: VariationalOptimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Train; for each step the weights that its gradient was taken at, and the mean after it."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            theta = task.weights
            if isinstance(optimizer, VOGN):
                optimizer.backward(task.model, task.inputs, task.targets, "bernoulli")
            else:
                task.backward()
        optimizer.step()
        yield theta, task.weights


def handed_over(task: Exercise, optimizer: VariationalOptimizer) -> Tensor:
    """The precision matrix of the posterior that an optimizer returns."""
    structure: Any = optimizer.structure({"weight": task.model.weight})
    matrix: Tensor = structure.precision_matrix()
    return matrix


class HalfSteps:
    """The rule in two half steps: the precision while the mean is held, and the mean while the precision is held.

    Args:
        mean: Where the mean starts.
        precision: Where the precision starts, the same for all weights.
        lr: The step of the mean.
        momentum: Of the mean.
        debias: Whether the momentum is an average from the first step on.
    """

    def __init__(
        self, mean: Tensor, precision: float, lr: float = LR, momentum: float = 0.0, debias: bool = False
    ) -> None:
        self.q = DiagonalGaussian(mean, torch.full_like(mean, precision))
        self._rule = BayesianLearningRule(AtPoints(mean[None]), lr=lr, momentum=momentum, debias=debias)
        self._velocity: Coordinates = ()
        self._steps = 0

    def move_precision(self, theta: Tensor, curvature: Curvature, loss: Loss, delta: float, retracted: bool) -> None:
        """S ← that of a step of the rule, with the prior N(0, 1/(λδ))."""
        zeros = torch.zeros_like(self.q.mean)
        prior = DiagonalGaussian(zeros, zeros + N * delta) if delta else None
        rule = BayesianLearningRule(AtPoints(theta[None], curvature), lr=RATE, prior=prior, retracted=retracted)
        self.q = DiagonalGaussian(self.q.mean, rule.step(self.q, loss).precision)

    def move_mean(self, theta: Tensor, loss: Loss) -> None:
        """λ ← λ − ρ ∇ℓ(θ) of N(m, S⁻¹) with S as it is: m ← m − ρ S⁻¹ ∇ℓ(θ)."""
        held = State(FixedGaussian(self.q.mean, self.q.precision.diag()), self._velocity, self._steps)
        after = replace(self._rule, gradient=AtPoints(theta[None])).advance(held, loss)
        self._velocity, self._steps = after.velocity, after.steps
        self.q = DiagonalGaussian(after.q.mean, self.q.precision)
