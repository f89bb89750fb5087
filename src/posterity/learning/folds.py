"""Cross-validation of a network in one pass: when it begins to memorise, and its predictions of unseen rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from posterity.errors import require, require_whole
from posterity.learning.committee import Committee, committee
from posterity.likelihoods import Likelihood
from posterity.progress import Rate, track
from posterity.startup import put_off_compiler, step_of

FOLDS = 5
LONGEST = 3000  # steps after which a network that still improves is taken for one that does not memorise
LR, DECAY = 2e-3, 0.01  # of AdamW
_GROWTH = 1.15  # ratio of two lengths that are compared
_FIRST = 100  # steps that networks with a start of their own get to improve on it
_TAIL = 5  # of t steps, those since t (1 − 1/5) make up most of an average
_SLACK = 0.05  # of the lowest loss, by which a longer training may be worse and is still called late
_LEAST_NOISE = 1e-6  # of a regression, in variances of its targets
_AT_ONCE = 4096  # examples of one network's forward pass when it predicts


class _Search(NamedTuple):
    """How a length is searched: steps between two at least, when to stop, and by how many examples each is judged.

    It stops after `patience` times the best length and `more` steps, or as soon as the loss of the examples is above
    its lowest by so many standard errors that it is `certain`.
    """

    apart: int
    patience: float
    more: int
    judging: int
    certain: float


# The first was chosen on data with planted errors, see `benchmarks/suspects.py`.
_QUICK, _THOROUGH = _Search(8, 1.3, 20, 1000, 3.0), _Search(4, 1.6, 50, 5000, float("inf"))


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What networks predict of examples that they have not learnt from, at the length at which they do so best.

    Args:
        outputs: Outputs for each example of the network that has not seen it, (N, K).
        average: Outputs for each example, averaged over all networks, those that have learnt from it included.
        steps: Steps of the best length; 0 where networks that were given a start were best there.
        loss: Mean loss of all examples at that length, each of them out of fold.
        memorises: Whether longer training was worse; otherwise the longest training that was tried was the best.
        late: Steps of the longest training whose loss was within 5 % of the lowest: for those that noise or another
            regulariser keeps from memorising. None where it was not searched for.
        shrink: By how much the errors of the final training are smaller than those out of fold; 1 where not measured.
    """

    outputs: Tensor
    average: Tensor
    steps: int
    loss: float
    memorises: bool
    late: int | None = None
    shrink: float = 1.0

    def noise_precision(self, targets: Tensor) -> float:
        """The precision β of a regression's noise: 1/β is the mean squared error out of fold, times shrink².

        Training residuals would be too small: a network follows some of the noise of what it learns from.
        """
        targets = targets.to(self.outputs)
        error = self.shrink**2 * (self.outputs - targets).square().mean().item()
        return 1 / max(error, _LEAST_NOISE * targets.var().item(), _LEAST_NOISE**2)


def out_of_fold(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int = 64,
    lr: float = LR,
    decay: float = DECAY,
    longest: int | None = None,
    averaged: bool = False,
    thorough: bool = False,
    parts: str = "random",
    start: Callable[[nn.Module, Tensor, Tensor], None] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> OutOfFold:
    """Train networks on all but one part of the data each, and predict that part with each.

    The networks learn side by side with AdamW, and every so often each predicts the part it has not seen. The length
    with the lowest mean loss over all parts is used; training stops when longer ones have been worse for a while.

    Args:
        networks: One for each part, with initial weights of their own; they are trained in place.
        inputs: Inputs of all examples, (N, ...).
        targets: Their targets.
        likelihood: What the outputs mean.
        batch_size: Examples a step, of each network.
        lr: Learning rate of AdamW, without a schedule.
        decay: Its weight decay.
        longest: Steps at most; by default 3000.
        averaged: Judge the average of the last weights, about a fifth of them. It is near to what a falling learning
            rate would reach, where the weights themselves are kept far from it by the noise of their batches.
        thorough: Judge lengths by more examples, and go on for longer: noise then misleads the search less, and
            `OutOfFold.late` is known.
        parts: Which examples each part has: "random" ones, or "blocks" of neighbouring ones.
        start: A function that is given each network with the inputs and targets it will learn from, to set its weights.
        seed: Seed of the parts and of the order of examples.
        progress: True or False to force or forbid the progress bar; by default it shows on terminals.

    Returns:
        Predictions out of fold, and the length that led to them.
    """
    put_off_compiler()
    n, count = len(targets), len(networks)
    require_whole("batch_size", batch_size)
    require(2 <= count <= n, "folds", f"from 2 to {n}, the number of examples", count)
    generator = torch.Generator().manual_seed(seed)
    part = PARTS[parts](n, count, generator)
    search = _THOROUGH if thorough else _QUICK
    unseen = [(part == k).nonzero().flatten()[: search.judging // count] for k in range(count)]
    seen = [(part != k).nonzero().flatten() for k in range(count)]
    if start is not None:
        for network, rows in zip(networks, seen):
            start(network, inputs[rows], targets[rows])
    together = committee(networks, inputs)
    optimizer = AdamW(together.parameters, lr=lr, weight_decay=decay, fused=True)
    take_step = step_of(optimizer)
    present = [p.detach() for p in together.parameters]
    judged = [p.clone() for p in present] if averaged else present
    best = [p.clone() for p in present]

    held_out = [(k, inputs[rows], targets[rows]) for k, rows in enumerate(unseen)]

    def unseen_losses() -> Tensor:
        with torch.no_grad(), _at(present, judged):
            return torch.cat([likelihood.loss(together.one(k, x), y) for k, x, y in held_out])

    best_loss, best_steps, last, memorises = float("inf"), 1, 0, False
    lowest = inputs.new_full((), float("inf"))  # losses of the best length
    if start is not None:  # which may be as good as it gets
        best_loss, best_steps = unseen_losses().mean().item(), 0
    tried = [(best_steps, best_loss)]  # lengths and their losses
    orders = _batches(seen, batch_size, generator)
    longest = longest or LONGEST
    steps = iter(range(1, longest + 1))  # without a length: it stops long before in most cases
    rate = Rate()
    for step in track(steps, "cross-validation, step", show=progress, note=rate.words):
        rows = next(orders)
        rate.done += rows.numel()
        x = inputs.index_select(0, rows.flatten()).unflatten(0, rows.shape)  # inputs[rows], faster
        f = together.forward(x)
        loss = likelihood.loss(f.flatten(0, 1), targets[rows].flatten(0, 1)).sum() / rows.shape[1]
        for p in together.parameters:
            p.grad = None
        loss.backward()
        take_step()
        if averaged:
            torch._foreach_lerp_(judged, present, min(1.0, _TAIL / step))
        if step < max(last + search.apart, _GROWTH * last) and step < longest:
            continue
        last = step
        losses = unseen_losses()
        total = losses.mean().item()
        tried.append((step, total))
        if total < best_loss:
            best_loss, best_steps, lowest = total, step, losses
            torch._foreach_copy_(best, judged)
        elif step > search.patience * max(best_steps, _FIRST if start else 0) + search.more or (
            start is None and _standard_errors(losses - lowest) > search.certain
        ):
            memorises = True
            break
    memorises |= averaged and best_steps < last  # averages change smoothly: it is no accident that more was worse
    torch._foreach_copy_(present, best)
    found = _predictions(together, inputs, count)
    outputs = found[part, torch.arange(n)]
    loss_of_all = likelihood.loss(outputs, targets).mean().item()
    as_good = [step for step, total in tried if total <= best_loss + _SLACK * abs(best_loss)]
    latest = max(as_good, default=best_steps) if thorough else None
    return OutOfFold(outputs, found.mean(0), best_steps, loss_of_all, memorises, latest)


def _standard_errors(gaps: Tensor) -> float:
    """How many standard errors the mean of gaps is above zero; 0 where they are all the same."""
    error = gaps.std().item() / len(gaps) ** 0.5
    return gaps.mean().item() / error if error > 0 else 0.0


def at_random(n: int, count: int, generator: torch.Generator) -> Tensor:
    """The part of each example: equally many in each, at random."""
    return torch.randperm(n, generator=generator) % count


def in_blocks(n: int, count: int, generator: torch.Generator) -> Tensor:
    """The part of each example: equally many in each, neighbours in the same; nothing is drawn.

    Examples:
        >>> in_blocks(5, 2, torch.Generator()).tolist()
        [0, 0, 0, 1, 1]
    """
    return torch.arange(n) * count // n


PARTS = {"random": at_random, "blocks": in_blocks}


@contextmanager
def _at(present: list[Tensor], others: list[Tensor]) -> Iterator[None]:
    """Other weights in place of the present ones for a while."""
    if present is others:
        yield
        return
    kept = [p.clone() for p in present]
    torch._foreach_copy_(present, others)
    yield
    torch._foreach_copy_(present, kept)


def _batches(seen: Sequence[Tensor], size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows of each network's batch, (K, B): every epoch a new order, each network in its own."""
    shortest = min(map(len, seen))
    size = min(size, shortest)
    while True:
        orders = torch.stack([rows[torch.randperm(len(rows), generator=generator)[:shortest]] for rows in seen])
        yield from (rows for rows in orders.split(size, dim=1) if rows.shape[1] * 2 > size)


@torch.no_grad()
def _predictions(together: Committee, inputs: Tensor, count: int) -> Tensor:
    """Outputs of every network for every example, (K, N, outputs)."""
    parts = inputs.split(_AT_ONCE)
    return torch.stack([torch.cat([together.one(k, some) for some in parts]) for k in range(count)])
