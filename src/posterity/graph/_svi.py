"""Stochastic variational inference: local variables with ρ = 1, shared ones with ρ_t on minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from posterity.errors import expected, require_whole
from posterity.families import Family
from posterity.gradients.losses import weight
from posterity.graph._factor import Belief
from posterity.graph._model import Model
from posterity.graph.evaluated import Evaluated
from posterity.graph.sweeps import Fit, settle, sweep
from posterity.progress import track
from posterity.rule import Schedule, robbins_monro


def svi_step(
    model: Model,
    q: Mapping[str, Belief],
    lr: float,
    *,
    n: int | None = None,
    local_steps: int = 100,
    local_tolerance: float = 1e-3,
) -> tuple[dict[str, Belief], float, float]:
    """One step on a minibatch.

    Args:
        model: The model on the B given rows.
        q: Beliefs about the shared variables.
        lr: ρ_t.
        n: Size N of the whole data set.
        local_steps: Updates of the local variables, at most.
        local_tolerance: When they are at rest.

    Returns:
        The beliefs after the step, an estimate of the bound before it, and the largest relative change of λ.
    """
    if model.size is None:
        raise expected("svi", "a model whose factors have rows of data", "none")
    scale, known = weight(model.size, n), Evaluated(model)
    here, _ = settle(known, model.start({name: q[name] for name in model.priors}), local_steps, local_tolerance)
    bound = known.bound(here, scale).item()
    here, change = sweep(known, here, lr, scale)
    return {name: here[name] for name in model.priors}, bound, change


def svi(
    model: Model,
    start: Mapping[str, Family] | None = None,
    *,
    batch_size: int = 256,
    steps: int = 1000,
    schedule: Schedule | None = None,
    tolerance: float = 0.0,
    local_steps: int = 100,
    local_tolerance: float = 1e-3,
    seed: int = 0,
) -> Fit:
    """Stochastic variational inference.

    Posterior: mean field over shared variables and, for each row of the data, local ones.

    Local variables see their own row alone: the rule with ρ = 1 until they rest. Shared variables take a step of the
    rule on a minibatch of B rows that represent all N:

        λ ← (1 − ρ_t) λ + ρ_t (λ⁰ + (N/B) Σ_b ∇_μ E_q[log p(x_b, z_b | θ)]).

    Args:
        model: Variables and factors, with the whole data.
        start: Where to begin, for some of the shared variables.
        batch_size: B.
        steps: Minibatches.
        schedule: t ↦ ρ_t; (t + 1)^−0.7 unless given.
        tolerance: Stop when λ moves by less than this.
        local_steps: Updates of the local variables, at most.
        local_tolerance: When they are at rest.
        seed: Of the order of the data.

    References:
        Hoffman, Blei, Wang and Paisley, "Stochastic variational inference", 2013.
    """
    require_whole("steps", steps)
    require_whole("batch_size", batch_size)
    q, bounds, taken, change = model.start(start), list[float](), 0, float("inf")
    size, schedule = model.size, schedule or robbins_monro()
    if size is None:
        raise expected("svi", "a model whose factors have rows of data", "none")
    minibatches = _minibatches(size, batch_size, seed)
    said = "stochastic variational inference"
    for taken in track(range(1, steps + 1), said, total=steps, note=lambda: f"bound {bounds[-1]:.6g}"):
        q, bound, change = svi_step(
            model.take(next(minibatches)), q, schedule(taken), n=size,
            local_steps=local_steps, local_tolerance=local_tolerance,
        )  # fmt: skip
        bounds.append(bound)
        if change <= tolerance:
            break
    return Fit(q, bounds, taken, change <= tolerance)


def _minibatches(n: int, size: int, seed: int) -> Iterator[Tensor]:
    """Rows of one minibatch after another, reshuffled each epoch, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(n, generator=generator).split(min(size, n))
