"""Films of a choice: the rule, or an optimizer of the package, run step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from posterity.app.rule.choice import Choice
from posterity.app.rule.film import Film, Frame, boundaries, describe, grid, surface, thetas
from posterity.app.rule.optimizers import MOVERS, moved
from posterity.families import DiagonalGaussian, FixedGaussian, Gaussian, SignBernoulli
from posterity.gradients import AnyFamily, Enumeration, Loss, Quadrature
from posterity.gradients._base import values_at
from posterity.rule import BayesianLearningRule

REACH = 2.4  # of the data's plane


def film(choice: Choice) -> Film:
    """Run a choice and look at q after each step."""
    where, loss = choice.where, choice.total()
    frames = [_seen(choice, loss, q) for q in steps(choice)]
    more: dict[str, Any] = {}
    if where.data:
        span = (-REACH, REACH)
        up = (-0.6, max(8.0, *(y + 1.0 for _, y in choice.data))) if where.data == "counts" else span
        more = {"data": choice.data, "data_kind": where.data, "data_domain": (span, up)}
        more["data_axes"] = ("x₁", "x₂") if where.data == "classes" else ("x", "y")
    point = choice.family == "point" or choice.square_root
    free = {0.0: "expected loss E[ℓ]", 1.0: "free energy E[ℓ] − H(q)"}.get(choice.entropy, "E[ℓ] − τ H(q)")
    measure = "loss ℓ(m)" if point else free
    shape = surface(loss, where.domain)
    return Film(where.domain, where.axes, frames, shape, measure=measure, hollow=choice.square_root, **more)


def steps(choice: Choice) -> Iterator[AnyFamily]:
    """q at the start and after each step."""
    if choice.estimator in MOVERS:
        yield from moved(choice)
        return
    rule, losses = choice.rule(), choice.losses()
    state = rule.start(choice.begin())
    yield state.q
    each: Iterable[Loss] = itertools.repeat(losses) if callable(losses) else losses
    for loss in itertools.islice(each, choice.steps):
        state = rule.advance(state, loss)
        yield state.q


def _seen(choice: Choice, loss: Loss, q: AnyFamily) -> Frame:
    frame = describe(q, energy=_energy(choice, loss, q))
    if choice.where.data:
        lines = boundaries(choice.where, thetas(q if not choice.square_root else _centre(q)), REACH)
        frame = replace(frame, lines=lines)
    if choice.where.dims == 1:
        frame = replace(frame, curve=_curve(choice, loss, q))
    return frame


def _centre(q: AnyFamily) -> FixedGaussian:
    return FixedGaussian(q.mean, torch.eye(q.mean.shape[-1], dtype=torch.float64))


def _energy(choice: Choice, loss: Loss, q: AnyFamily) -> float:
    """What the rule minimises, with exact expectations; the loss where q is a point."""
    if isinstance(q, FixedGaussian) or choice.square_root:
        return float(loss(q.mean))
    exact = Enumeration() if isinstance(q, SignBernoulli) else Quadrature(choice.nodes)
    return float(BayesianLearningRule(exact, temperature=choice.entropy).free_energy(q, loss))


def _curve(choice: Choice, loss: Loss, q: AnyFamily) -> list[float] | None:
    """What the algorithm uses in place of the loss: its average under q, moved along the axis, or SAM's maximum."""
    axis = grid(choice.where.domain)
    if choice.estimator == "sam":
        around = torch.linspace(-choice.radius, choice.radius, 61, dtype=torch.float64)
        worst: list[float] = values_at(loss, axis + around[:, None, None]).amax(0).tolist()
        return worst
    if choice.estimator == "delta" or not isinstance(q, Gaussian | DiagonalGaussian):
        return None
    precision = q.precision if isinstance(q, Gaussian) else q.precision.diag_embed()
    moved = Gaussian(axis, precision.expand(len(axis), 1, 1))
    averages: list[float] = Quadrature(choice.nodes).expectation(moved, loss).tolist()
    return averages
