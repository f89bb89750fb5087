"""A what-if carried on: quasi-Newton steps on the changed data, with the posterior as the first inverse Hessian.

The memory-perturbation equation is the first step. The residual gradient measures its quality, and further steps reduce
it. They minimise the objective of the changed data, tilted so that the old weights are its minimum as long as nothing
changes: training that stopped short of its optimum does not count as an effect of the change.

    F(Δ) = L_new(θ* + Δ) − ⟨∇L_old(θ*), Δ⟩ + ½ ΔᵀP₀Δ,     rest = ∇FᵀΣ∇F at Δ, as a share of that at 0

Each step is one pass over the data, or over a subset that represents them where there are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.batches import Batch
from posterity.inputs import call
from posterity.noise import seeded
from posterity.posterior import FittedModel
from posterity.trees import Tree, from_vector, only_trainable, to_vector

PASSES, FEWEST = 200, 8  # largest and smallest number that "auto" makes
EXAMPLES = 4096  # that stand for the data that do not change
WORK = 1e9  # rows × weights × passes, up to which "auto" makes them: a few seconds on one core
DONE = 1e-8  # of the gradient, left
TRIES, STEEP = 4, 0.9  # of a step along one direction; slope at its end, as a share of that at its start
PAIRS = 30  # differences of weights and gradients that quasi-Newton steps remember


@dataclass(frozen=True, eq=False)
class Refined:
    """Where the steps have led.

    Args:
        parameters: Δθ.
        rest: The share of the gradient that is left, ∇FᵀΣ∇F by its value before the first step.
        passes: Passes over the data that were made.
    """

    parameters: Tree
    rest: float
    passes: int


@dataclass(frozen=True, eq=False)
class Changed:
    """Examples that change, as one batch.

    Args:
        batch: The examples as they were.
        targets: Their new targets.
        weights: Their new weights (B, 1).
        touched: How far each one changes at all, at most 1 for a new target or a removal (B, 1).
    """

    batch: Batch
    targets: Tensor
    weights: Tensor
    touched: Tensor


class ChangedObjective:
    """The gradient of the tilted objective after a change.

    Args:
        trained: Model, posterior and data, with the model at its mean.
        others: Unchanged examples.
        each: How many examples each of them represents.
        group: The examples that change.
    """

    def __init__(self, trained: FittedModel, others: list[Batch], each: float, group: list[Changed]) -> None:
        self.model, self.law = trained.model, trained.likelihood
        self.others, self.each, self.group = others, each, group
        parameters = dict(self.model.named_parameters())
        self.like: Tree = {name: parameters[name].detach().clone() for name in trained.covariance.names}
        prior, scale = trained.posterior.prior, trained.posterior.temperature
        precision = {name: prior.precision[name].to(p).double().expand_as(p) for name, p in self.like.items()}
        self.pull = scale * to_vector(precision)
        before = [(some.batch, some.batch.targets, torch.ones_like(some.weights)) for some in group]
        self.tilt = self._data_gradient(torch.zeros_like(self.pull), before)

    def gradient(self, shift: Tensor) -> Tensor:
        """∇F at a change of the weights."""
        now = [(some.batch, some.targets, some.weights) for some in self.group]
        return self._data_gradient(shift, now) - self.tilt + self.pull * shift

    def _data_gradient(self, shift: Tensor, group: list[tuple[Batch, Tensor, Tensor]]) -> Tensor:
        found = torch.zeros_like(shift)
        with shifted(self.model, from_vector(shift, self.like)), only_trainable(self.model, self.like):
            for batch in self.others:
                found += self.each * self._gradient(batch, batch.targets, None)
            for batch, y, w in group:
                found += self._gradient(batch, y, w)
        return found

    def _gradient(self, batch: Batch, y: Tensor, w: Tensor | None) -> Tensor:
        with torch.enable_grad():
            f = call(self.model, batch.inputs)
            losses = self.law.loss(f, self.law.as_targets(f, y))
            total = losses.sum() if w is None else (w[:, 0].to(losses) * losses).sum()
            parameters = dict(self.model.named_parameters())
            found = torch.autograd.grad(total, [parameters[name] for name in self.like], materialize_grads=True)
        return to_vector({name: g.to_dense() for name, g in zip(self.like, found)}).double()


@contextmanager
def shifted(model: nn.Module, step: Tree) -> Iterator[None]:
    """The model with weights that are moved by a step; afterwards it holds the very tensors that it held before.

    Nothing is written into those: a double shares them with the posterior, which other threads read.
    """
    there = dict(model.named_parameters())
    before = {name: there[name].data for name in step}
    try:
        for name, t in step.items():
            there[name].data = before[name] + t.to(before[name])
        yield
    finally:
        for name, t in before.items():
            there[name].data = t


def affordable(trained: FittedModel, passes: int | str) -> int:
    """How many passes to make: so many, or for "auto" as many as a moment allows, none for large models."""
    if not isinstance(passes, str):
        return passes
    weights = sum(p.numel() for p in trained.model.parameters())
    found = min(PASSES, int(WORK / (weights * min(trained.posterior.n, EXAMPLES))))
    return found if found >= FEWEST else 0


def standing_for(trained: FittedModel, known: Tensor, touched: Tensor) -> tuple[list[Batch], float]:
    """Unchanged examples, at most some thousands, and how many each represents."""
    stays = (~torch.isin(known, touched)).nonzero()[:, 0]
    if len(stays) == 0:
        return [], 1.0
    chosen = stays
    if len(stays) > EXAMPLES:
        chosen = stays[torch.randperm(len(stays), generator=seeded(0))[:EXAMPLES]].sort().values
    return trained.examples(known[chosen], chosen), len(stays) / len(chosen)


def refined(trained: FittedModel, objective: ChangedObjective, first: Tree, passes: int) -> Refined:
    """Follow the first step to where the objective of the changed data has its minimum, in so many passes."""
    like = objective.like
    some = next(iter(like.values()))

    def spread(v: Tensor) -> Tensor:
        return to_vector(trained.covariance.times(from_vector(v.to(some), like))).double()

    shift = torch.zeros_like(objective.pull)
    g = objective.gradient(shift)
    push = (g @ spread(g)).item()
    direction = to_vector({name: first[name] for name in like}).double()
    best, lowest, made = direction, math.inf, 0
    pairs: list[tuple[Tensor, Tensor]] = []
    while made < passes and lowest > DONE * push:
        moved, new, used = _along(objective, shift, g, direction, passes - made)
        s, y = moved - shift, new - g
        if (s @ y).item() > 1e-10 * (s.norm() * y.norm()).item():
            pairs = [*pairs, (s, y)][-PAIRS:]
        shift, g, made = moved, new, made + used
        rest = (g @ spread(g)).item()
        if rest < lowest:
            best, lowest = shift, rest
        direction = -_quasi_newton(g, pairs, spread)
        if (g @ direction).item() >= 0:
            direction, pairs = -spread(g), []
    return Refined(from_vector(best, like), lowest / push if push > 0 else 0.0, made)


def _along(
    objective: ChangedObjective, shift: Tensor, g: Tensor, direction: Tensor, passes: int
) -> tuple[Tensor, Tensor, int]:
    """A step that does not end where the objective rises as steeply as it fell: halved by the secant until then.

    Only slopes are compared. The objective itself changes by less than single precision resolves.
    """
    slope, length, used = (g @ direction).item(), 1.0, 0
    while True:
        moved = shift + length * direction
        new = objective.gradient(moved)
        used += 1
        end = (new @ direction).item()
        if end <= STEEP * abs(slope) or used == min(TRIES, passes):
            return moved, new, used
        length *= min(max(slope / (slope - end), 0.1), 0.5)


def _quasi_newton(g: Tensor, pairs: list[tuple[Tensor, Tensor]], spread: Callable[[Tensor], Tensor]) -> Tensor:
    """H g by the two loops of L-BFGS, with Σ, times a number, for the first H."""
    q, shares = g, []
    for s, y in reversed(pairs):
        share = (s @ q) / (s @ y)
        shares.append(share)
        q = q - share * y
    x = spread(q)
    if pairs:
        s, y = pairs[-1]
        x = x * (s @ y) / (y @ spread(y))
    for (s, y), share in zip(pairs, reversed(shares)):
        x = x + (share - (y @ x) / (s @ y)) * s
    return x
