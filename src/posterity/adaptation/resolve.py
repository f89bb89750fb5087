"""What a request means for a model and its posterior: the first of the four steps of an adaptation."""

from __future__ import annotations

import copy
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import nn

from posterity.adaptation.changes import Change, Request, changed_prior, everything
from posterity.adaptation.heads import Head, find_head, grown, is_linear, solvable
from posterity.adaptation.past import joined
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.adaptation.problem import WARM, AdaptationProblem, one_example
from posterity.adaptation.selection import select
from posterity.batches import Batch, batches_of
from posterity.doubles import duplicate
from posterity.errors import InvalidInput, expected, require
from posterity.inputs import attempt, move, take
from posterity.learning.checks import check_inputs
from posterity.posterior import Memory, Posterior
from posterity.trees import evaluating, trainable

REMEMBERED = 10  # networks remember one in so many examples, unless told otherwise


def resolve(
    model: nn.Module,
    posterior: Posterior,
    request: Request,
    method: str | None,
    seed: int,
    forgets: bool = False,
) -> AdaptationProblem:
    """The problem that a request poses; nothing that was given is changed.

    Args:
        model: The trained model.
        posterior: Its posterior.
        request: What is asked for.
        method: How to solve it, for networks; None for the default.
        seed: Of the choice of a memory.
        forgets: Whether a part of the past is to be forgotten.
    """
    whole = None if request.data is None else everything(request.data, posterior)
    old = at_mean(model, posterior)
    _check_inputs(old, whole)
    remembered = _remembered(old, posterior, request.memory)
    new_data = None if request.add is None else next(iter(batches_of("add", request.add, 256)))
    inputs = one_example(whole, remembered, new_data)
    outputs, head = _outputs(old, inputs), find_head(old, inputs)
    linear = is_linear(old, posterior, head)
    memory = remembered
    if memory is None:
        count = int(request.memory) if isinstance(request.memory, Integral) else None
        memory = _chosen(old, posterior, count, whole, linear, seed)
    change = Change.of(request, posterior, whole, memory, outputs)
    _check_inputs(old, change.added)
    new = _successor(old, head, change) if request.into is None else copy.deepcopy(request.into)
    wanted, got = change.classes or outputs, _outputs(new, inputs)
    require(got == wanted, "into", f"a model with {wanted} outputs (`classes` declares new ones)", got)
    found = find_head(new, inputs)
    linear = linear and solvable(new, posterior, found)
    if forgets and linear:  # its prior alone is left in the end: one that was centred by the data is about zero again
        posterior = replace(posterior, prior=posterior.prior_without_data)
    way, why = _way(method, linear, whole, request.into, forgets)
    heads = (head, found) if linear and head is not None and found is not None else None
    there = dict(new.named_parameters())
    names = _learnt(posterior, new, found, linear, change)
    prior = changed_prior(posterior, request.prior_precision, {name: there[name] for name in names})
    return AdaptationProblem(
        old, new, heads, posterior, whole, memory, change, prior, way, why, recalls=method != "ewc"
    )


def at_mean(model: nn.Module, posterior: Posterior) -> nn.Module:
    """A copy of the model at the posterior mean, in evaluation mode."""
    old = duplicate(model)
    posterior.apply(old)
    return old.eval()


def _remembered(old: nn.Module, posterior: Posterior, memory: Memory | int | None) -> Memory | None:
    """The memory that was given or that the posterior carries, with predictions, which have to be this model's."""
    memory = posterior.memory if memory is None else memory
    if memory is None or isinstance(memory, Integral):
        return None
    if not isinstance(memory, Memory):
        raise expected("memory", "a Memory, a number of examples or None", type(memory).__name__)
    try:
        f = outputs_of(old, memory.batch())
    except (RuntimeError, TypeError) as why:
        raise InvalidInput(f"memory: expected inputs that the model takes, got an error: {why}") from why
    given = memory.predictions
    if given is not None:
        same = given.shape == f.shape and torch.allclose(given.to(f), f, rtol=1e-3, atol=1e-3)
        require(same, "memory", "this model's predictions at its posterior mean", "those of another model")
    return replace(memory, predictions=f)


def _chosen(
    old: nn.Module, posterior: Posterior, count: int | None, whole: Batch | None, linear: bool, seed: int
) -> Memory | None:
    """Examples chosen from the data: so many, or all for linear models and one in ten for networks."""
    if whole is None:
        require(count is None, "memory", "a Memory, or data beside a number to choose from", count)
        return None
    require(count is None or count >= 1, "memory", "at least one example", count)
    if count is None:
        count = len(whole) if linear else -(-len(whole) // REMEMBERED)
    if count >= len(whole):
        return joined(None, old, whole)
    return select(old, posterior, (whole.inputs, whole.targets, whole.ids), count, seed=seed)


def _check_inputs(model: nn.Module, batch: Batch | None) -> None:
    if batch is not None:
        check_inputs(model, batch)
        with evaluating(model), torch.no_grad():
            attempt(model, move(take(batch.inputs, torch.arange(1)), next(model.parameters()).device))


def _last_layer(posterior: Posterior) -> bool:
    return posterior.structure.varying is not posterior.structure


def _way(
    method: str | None, linear: bool, whole: Batch | None, into: nn.Module | None, forgets: bool
) -> tuple[str, str]:
    """How to solve the problem, and why."""
    if linear:
        return "newton", "only one linear layer learns: Newton's method finds the minimum"
    if method == WARM or (method is None and whole is not None and into is None and not forgets):
        require(not forgets, "method", "a K-prior where the past is forgotten (`forget`)", WARM)
        require(whole is not None, "method", "data beside a warm start", "none")
        require(into is None, "method", "a K-prior where another model is trained (`into`)", WARM)
        return WARM, "the old data were given: trained on the corrected data"
    if method is not None:
        return method, "asked for"
    gone = "the weights are those of another model" if into is not None else "a part of the past is forgotten"
    gone = "the old data were not given" if whole is None else gone
    return "kprior", f"{gone}: the posterior and a memory represent them"


def _learnt(posterior: Posterior, new: nn.Module, head: Head | None, linear: bool, change: Change) -> tuple[str, ...]:
    """Names of what is to be learnt: where only one layer was uncertain, that layer, and outputs that are new."""
    there = tuple(trainable(new))
    before = gaussian_of(posterior.structure).names
    if linear and head is not None:
        return head.names
    if not _last_layer(posterior) or not set(before) <= set(there):
        return there
    grown_head = head.names if head is not None and change.classes is not None else ()
    return tuple(name for name in there if name in before or name in grown_head)


def _outputs(model: nn.Module, inputs: Any) -> int:
    """Number of outputs."""
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        f = attempt(model, move(take(inputs, torch.arange(1)), device))
    require(f.dim() == 2, "model output", "one row of outputs for each example, (B, K)", tuple(f.shape))
    return f.shape[1]


def _successor(old: nn.Module, head: Head | None, change: Change) -> nn.Module:
    """A copy of the old model to be adapted, with more outputs if need be."""
    if change.classes is None:
        return copy.deepcopy(old)
    if head is None:
        raise expected("classes", "a model whose outputs come from a linear layer", type(old).__name__)
    return grown(old, head, change.classes)
