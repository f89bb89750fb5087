"""Classes that lose all their examples: the model loses the outcome, and regions that they separated may join.

A softmax is saturated on examples that are learnt: at θ* they hardly pull, and without them hardly anything pulls the
other way. So the outcome goes first: its output is silenced, the old predictions are those given that it is another
class,

    h(f*)_k / (1 − Σ_lost h(f*)_c),

and the weights set out from m₀ + s (θ* − m₀), nearer to the prior, where outputs that had to stay low on the lost
examples may rise again. Old predictions on the memory bring everything else back.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posterity.adaptation.changes import Change
from posterity.adaptation.groups import is_label
from posterity.adaptation.heads import find_head
from posterity.adaptation.past import Past
from posterity.adaptation.penalties.replay import predictions_of
from posterity.adaptation.problem import AdaptationProblem
from posterity.posterior import Memory

KEPT = 0.8  # s
SILENT = -30.0  # as a logit, where others are of ordinary size: a probability that no loss can see
BELOW = 20.0  # the largest other logit at least, whatever its size: e⁻²⁰ is nothing beside 1 in float32


def removed_classes(problem: AdaptationProblem, past: Past) -> Tensor:
    """Labels of removed examples that no other example has, judged by the data or else by the memory.

    A memory suffices where the function that names a group picks a class regardless of the inputs, or where the memory
    represents all data.
    """
    change, memory = problem.change, problem.memory
    nothing = torch.empty(0, dtype=torch.int64)
    if change.removed is None or past.memory is None or memory is None:
        return nothing
    if not problem.posterior.likelihood.has_class_axis or not is_label(change.removed.targets):
        return nothing
    labels, whole = change.removed.targets.unique().long(), problem.all_data()  # truth values cannot be looked up
    if change.others is not None:
        labels = labels[torch.isin(labels, change.others.labels.to(labels))]
    elif whole is None:
        told = memory.weights.sum().item() > problem.posterior.n - 0.5
        gone = [told and _all_gone(memory, change, label) for label in labels]
        labels = labels[torch.tensor(gone, device=labels.device)]
    for batch in (whole, change.added):
        if batch is not None:
            labels = labels[~torch.isin(labels, batch.targets.to(labels))]
    return labels


def _all_gone(memory: Memory, change: Change, label: Tensor) -> bool:
    """Whether as many examples of a class are removed as the memory represents."""
    assert change.removed is not None
    there = memory.weights[memory.targets == label.to(memory.targets)].sum().item()
    return change.counts[(change.removed.targets == label).cpu()].sum().item() > there - 0.5


def without_classes(problem: AdaptationProblem, past: Past, lost: Tensor) -> Past:
    """The past without some outcomes; the model to be trained is silenced and pulled back, in place."""
    change = problem.change
    assert past.memory is not None
    assert change.removed is not None
    old = predictions_of(past.memory)
    shrink(problem, KEPT)
    low = silence(problem, old, lost)
    theirs = torch.isin(change.removed.targets.to(lost), lost).nonzero()[:, 0].cpu()
    goes = replace(change, removed=change.removed.take(theirs), counts=change.counts[theirs])
    pull = goes.lost(problem.old, problem.posterior.likelihood, tuple(past.pull))
    memory = replace(past.memory, predictions=old.index_fill(1, lost.to(old.device), low))
    return replace(past, memory=memory, pull={name: g + pull[name].to(g) for name, g in past.pull.items()})


@torch.no_grad()
def silence(problem: AdaptationProblem, outputs: Tensor, lost: Tensor) -> float:
    """Silence some outputs of the model to be trained, in place.

    Args:
        problem: Before.
        outputs: The old model's outputs for some examples.
        lost: Classes that are no more.

    Returns:
        The logit of a class that is silent beside these outputs.
    """
    model = problem.new
    others = outputs.index_fill(1, lost.to(outputs.device), -torch.inf)
    low = min(SILENT, others.amax(1).min().item() - BELOW)
    head = find_head(model, problem.examples().inputs)
    if head is not None and head.layer.bias is not None:
        # Without a bias nothing holds an output down on all inputs: training alone teaches it.
        head.layer.weight[lost.to(head.layer.weight.device)] = 0.0
        head.layer.bias[lost.to(head.layer.bias.device)] = low
    return low


@torch.no_grad()
def shrink(problem: AdaptationProblem, kept: float) -> None:
    """Bring the weights of the model to be trained nearer to where training started, m₀ + s (θ − m₀), in place.

    m₀ is the prior's mean, or zero where the prior is centred at the old weights.
    """
    there, alone = dict(problem.new.named_parameters()), problem.widths_alone()
    for name, m in problem.prior.mean.items():
        p = there[name]
        centre = torch.zeros_like(p) if alone else m.to(p)
        p.copy_(centre + kept * (p - centre))
