"""What `Variational` measures as it trains: steps, clipping, the number of effective parameters, and the price."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posterity.errors import require
from posterity.optim import gap, watch
from posterity.optim._distributed import Replicas, local, sharded, summed
from posterity.optim._options import check_finite
from posterity.optim.price import SHUT, Price, opening, progress

if TYPE_CHECKING:
    from posterity.optim.engine._statistics import Statistics

COLD = 20  # steps without noise, in which second moments find their size
REFRESH = 20  # steps between two looks at all widths
USUAL_BATCH = 64  # where nobody says
DECAY = 0.999  # of averages of squares
MEASURED = (
    "scale", "total", "clipping", "spent", "owed", "known_per_ess", "taught", "moved", "settled", "growing", "looks",
)  # fmt: skip
SIGNED = ("paid", "last", "spent", "growing", "looks")
LATER = ("taught", "moved", "settled", "growing", "looks", "follows")  # that states of earlier versions lack
FEW = 5  # looks that count in the first half of training
FORMER = "allowed"  # a number that states of earlier versions have
ENOUGH = 5.0  # times λ / B: steps in which noise tells the curvature of each weight
SURE = 400.0  # squared, the standard deviations by which a mean loss and a summed one are told apart
TOO_LARGE = (
    "expected the mean loss of a batch, got gradients far too large for the curvature that noise in the weights meets: "
    "divide a summed loss by the number of examples (tokens), a squared error by twice the variance of its noise"
)
UNCLEAR = (
    "gradients were both multiplied by a GradScaler and clipped, and these two factors cannot be told apart: "
    "give the GradScaler as scaler="
)
SMALLEST = 1e-4  # of the mean square of a tensor's weights, which sets the width of its prior


@dataclass
class Meter:
    """Numbers of one run; tensors on the device of the weights, so that nothing waits for it.

    Args:
        price: The window of prices, and λ.
        batch: Examples behind a gradient.
        known: Whether it was given; otherwise it is an estimate.
        total_steps: Length of training, where it is known.
        by_price: Whether the curvature of each weight comes from Price's theorem, and not from squares of gradients.
            It does for batches so large that squares carry no information, and for models so small that their noise is
            informative enough by the end of training: the estimate has a relative variance of 1 / (B Σ 1/λ).
        follows: Whether the budget follows the gap of `posterity.optim.gap`.
    """

    price: Price
    batch: float
    known: bool
    total_steps: int | None
    by_price: bool
    follows: bool
    scale: Tensor
    total: Tensor  # Σ h/(h + δ) at the last look
    taught: Tensor  # the gap G between examples of training and others
    moved: Tensor  # the sum τ of learning rates
    settled: Tensor  # Σ h/(h + δ) when the gap was last learnt
    growing: Tensor  # U, what larger weights of a layer would gain in training, averaged over looks
    looks: Tensor  # behind that average; in the first half of training, minus their number
    clipping: Tensor  # average square of what clipping leaves of a gradient, to be debiased
    measured: int = 0  # steps behind that average
    steps: int = 0  # that moved the mean
    peak: float = 0.0  # the largest learning rate so far
    due: Tensor | None = None  # the price of the step under way
    done: float = 0.0  # share of training
    watched: bool = False  # whether rows that are not trained on set the budget, so that it need not open late
    spent: Tensor | float = 0.0  # Σ 2c since the start
    owed: Tensor | float = 0.0  # what that would be if squares of gradients were curvatures, Σ P/λ
    known_per_ess: Tensor | float = 0.0  # Σ 1/λ, what Price's theorem has told about the curvature of a weight
    unclear: Tensor | bool = False  # whether norms alone had to tell a GradScaler from clipping

    @classmethod
    def of(
        cls,
        n: float,
        batch_size: int | None,
        total_steps: int | None,
        budget: float | None,
        weights: Sequence[Tensor],
    ) -> Meter:
        """Nothing has been measured yet; without a budget it follows the gap, where gradients tell it."""
        batch, usual = float(min(batch_size or USUAL_BATCH, n)), gap.UNKNOWN if budget is None else budget
        largest = max(n, sum(p.numel() for p in weights) / (2 * usual))
        enough = total_steps is not None and ENOUGH * largest <= batch * total_steps
        by_price = batch_size is not None and (enough or batch > n / 2)
        follows = budget is None and not by_price
        price = Price.of(n, gap.MOST if follows else usual, weights[0].device)
        zero, known = torch.zeros_like(price.ess), batch_size is not None
        kinds = (price, batch, known, total_steps, by_price, follows)
        total, taught, moved, settled, growing, looks, clipping = (zero.clone() for _ in range(7))
        return cls(*kinds, zero + batch, total, taught, moved, settled, growing, looks, clipping)

    @property
    def silent(self) -> bool:
        """Whether there is no noise yet."""
        return self.steps < COLD

    def examples(self) -> Tensor:
        """What turns the square of a mean gradient into that of one example's: B, and three corrections.

        Drawn without replacement, the mean over B examples keeps (N − B)/(N − 1) of the variance. The noise of the
        weights adds its own variance to gradients, h²σ², which is B/λ of the square of one example's. Clipping has
        made gradients smaller.
        """
        spread = (self.price.n - self.batch) / max(self.price.n - 1, 1) if self.known else 1.0
        return self.scale / ((spread + self.scale / self.price.ess) * self.left())

    def left(self) -> Tensor | float:
        """What clipping has left of the square of a gradient, on average."""
        return self.clipping / (1 - DECAY**self.measured) if self.measured else 1.0

    @property
    def parameters(self) -> Tensor:
        """P̂, the effective number of parameters."""
        return self.price.parameters(self.total, self.batch)

    def measure(self, price: Tensor, clipping: Tensor, unclear: Tensor | bool) -> None:
        """Take in the price of a step, what clipping has left of its gradients, and whether that is a guess."""
        self.clip(clipping)
        self.unclear = self.unclear | unclear
        self.due = None if self.silent else price

    def clip(self, clipping: Tensor) -> None:
        """Take in what clipping has left of the gradients of a step."""
        self.clipping = DECAY * self.clipping + (1 - DECAY) * clipping.square().to(self.clipping)
        self.measured += 1

    def news(self) -> Tensor | float:
        """The weight of the coming step in an average over steps: its share of Σ 1/λ; a start counts for 1/B."""
        now = 1 / self.price.ess
        return plain(now / (self._kept * self.known_per_ess + 1 / self.batch + now))

    @property
    def _kept(self) -> float:
        """What an average of curvatures keeps: all where λ has come down by the end, or else of some thousand steps."""
        return DECAY if self.total_steps is None else 1.0

    def stepped(self, lr: float) -> bool:
        """Count a step; whether it is time to look at all widths."""
        self.steps, self.peak = self.steps + 1, max(self.peak, lr)
        return not self.silent and (self.steps - COLD) % REFRESH == 0

    def complaints(self, wait: bool = False) -> Iterator[str]:
        """What is wrong with the run after a step.

        Args:
            wait: Whether to wait for a device that is not the CPU.
        """
        if self.total_steps is not None and self.steps == self.total_steps + 1:
            yield f"expected at most total_steps={self.total_steps} steps, got more: the noise keeps its final budget"
        if wait or (self.total.device.type == "cpu" and self.steps % REFRESH == 0):
            if self._too_large():
                yield TOO_LARGE
            if bool(self.unclear):
                yield UNCLEAR

    def _too_large(self) -> bool:
        """Whether gradients are those of a summed loss, as far as can be seen.

        With the mean loss of B examples the curvature is B v̂, and 2c / Σ σ²v̂ is about B; with their summed loss it is
        about 1, or a few where the network memorises. Σ 2c has a variance of Σ Σ σ²v̂ = owed / B.
        """
        if not self.known or self.by_price or self.batch < 16:
            return False
        spent, owed = float(self.spent), float(self.owed)
        return owed * self.batch > SURE and spent < max(min(8 / self.batch, 0.25), 0.05) * owed

    def rescale(self) -> None:
        """Where the batch size was not given: let squares of gradients agree with the measured price."""
        if not self.known and self.steps > COLD:
            ratio = (self.parameters / self.total).clamp(0.9, 1.1)
            self.scale = (self.scale * ratio).clamp(1.0, self.price.n)
            self.batch = float(self.scale)

    def hold(self, lr: float, share: float) -> None:
        """Set λ for the next sample, for a share of the budget that is open, and pay for the last one.

        In this order: kernels take the price in the same pass over memory that draws the next sample.
        """
        drawn, self.price.ess = self.price.ess, self.following(lr, share)
        if self.due is not None:
            self.pay(self.due, drawn)
        self.due = None

    def pay(self, price: Tensor, drawn: Tensor) -> None:
        """Take in the price of a sample that was drawn at this λ."""
        self.spent = self.spent + 2 * price.to(self.total)
        self.owed = self.owed + self.total / drawn
        self.known_per_ess = self._kept * self.known_per_ess + 1 / drawn
        self.price.pay(price, drawn)

    def following(self, lr: float, share: float) -> Tensor:
        """λ for the next sample."""
        epochs = self.progress(lr)
        return self.price.held(self.total, self._open(share, self.done, epochs), self.batch)

    def _open(self, share: float, done: float, epochs: float) -> Tensor | float:
        """The share of the budget that is open; where rows are watched, at least what the gap is worth."""
        opened = opening(done, epochs)
        if not self.follows:
            return share if self.watched else share * opened
        worth = gap.worth(self.taught, self.settled / self.price.n)
        settled = self.settled / self.total.clamp_min(1e-30)
        allowed = gap.believed(worth, self.price.agreement(self.total, self.batch), settled, self.growing)
        return share * (
            (opened * allowed / self.price.budget).clamp_min(1.0) if self.watched else opened * allowed / gap.MOST
        )

    def learn_gap(self, own_doing: Tensor, growing: Tensor, lr: float) -> None:
        """Take in what examples do for their own loss in a step, for all steps until the next look.

        The step is that of the clipped gradient. The loss falls by its product with the gradient before clipping.

        Args:
            own_doing: η (ĝ − ḡ)ᵀ D ĝ, over all weights.
            growing: −mᵀḡ of the layer where it is largest.
            lr: The largest learning rate.
        """
        self.progress(lr)
        if self.done <= gap.NOISY:
            self.looks = (self.looks - 1).clamp(-FEW, -1) if self.done <= SHUT else self.looks.clamp_min(0) + 1
            gain = growing.to(self.total) / self.left() ** 0.5
            self.growing = self.growing + (gain - self.growing) / self.looks.abs()
        if self.done > SHUT:
            return
        once = self.examples() * self.left() ** 0.5
        per_step = own_doing.to(self.total).clamp_min(0) * once / self.price.n
        self.taught = gap.remembered(self.taught, self.moved, REFRESH * lr) + REFRESH * per_step
        self.moved, self.settled = self.moved + REFRESH * lr, self.total.clone()

    def progress(self, lr: float) -> float:
        """Note how much of training is done; how often each example has been seen, on average."""
        epochs = self.steps * self.batch / self.price.n
        self.done = self.steps / self.total_steps if self.total_steps else progress(lr, self.peak, epochs)
        return epochs

    def watch(self) -> None:
        """Let looks at rows that are not trained on set the budget from now on."""
        self.watched = True
        if not self.steps:
            self.price.budget = watch.START

    def look_due(self) -> bool:
        """Whether it is time for one."""
        every = watch.EVERY if self.total_steps is None else max(10, self.total_steps // watch.LOOKS)
        ends = self.total_steps is not None and self.steps >= self.total_steps
        return self.watched and not self.silent and not ends and self.done > watch.FROM and self.steps % every == 0

    def adjust(self, temperature: float, gain: float, share: float) -> None:
        """Take in what a look has found."""
        price = self.price
        paid = float(self.parameters / (2 * price.ess))
        if float(price.ess) <= self.price.n:  # a larger budget changes nothing, and would take long to shrink again
            price.budget = min(price.budget, max(paid / share, watch.LEAST))
        price.budget = watch.adjusted(price.budget, temperature, gain, paid)

    def finish(self, share: float) -> None:
        """Set λ as at the end of training, when the budget is open, after as many epochs as there were.

        Prices of much colder steps are hardly informative about P̂ at the new λ, which weights them: so it is solved in
        a few turns.
        """
        opened = self._open(share, 1.0, self.steps * self.batch / self.price.n)
        for _ in range(10):
            self.price.ess = self.price.held(self.total, opened, self.batch)

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a state dict."""
        own = {name: getattr(self, name) for name in ("steps", "measured", "peak", "batch", "follows")}
        return own | {name: float(getattr(self, name)) for name in MEASURED} | self.price.state()

    def loaded(self, numbers: Mapping[str, Any]) -> Meter:
        """Another meter, with what `state` gave: a load that fails later leaves this one in its place."""
        left, other = dict(numbers), copy.deepcopy(self)
        other.steps, other.measured = int(left.pop("steps")), int(left.pop("measured"))
        other.peak, other.batch = left.pop("peak"), left.pop("batch")
        other.follows = bool(left.pop("follows", False))  # the budgets of earlier versions were fixed
        left.pop(FORMER, None)
        missing = {"settled": left["total"]}
        if "looks" not in left:  # it was a sum over layers
            left.pop("growing", None)
        for name in MEASURED:
            setattr(other, name, torch.full_like(self.scale, left.pop(name, missing.get(name, 0.0))))
        other.price.load(left)
        return other


def check_numbers(numbers: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
    """Raise unless all numbers of a state dict are finite, and positive where they must be.

    Args:
        numbers: By name.
        own: What a state dict of now would have; those of earlier versions lack some, and have one more.
    """
    if own is not None:
        named = own.keys() - {*LATER} <= numbers.keys() <= own.keys() | {FORMER}
        require(named, "state dict", f"the numbers {', '.join(own)}", ", ".join(numbers))
    for name, value in numbers.items():
        check_finite(f"state dict, {name}", value, -math.inf if name in SIGNED else 0.0)
        require(name not in ("ess", "batch", "budget") or value > 0, f"state dict, {name}", "a positive number", value)


def sizes(norms: list[tuple[Tensor | None, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Σ gradient² when the last sample was taken away, and now, over the weights of this process.

    Args:
        norms: Of the gradient of each parameter then, and the parameter.
        like: A number of the wanted type, on the wanted device.
    """
    known = [(then, p.grad) for then, p in norms if then is not None and p.grad is not None]
    if not known:
        return torch.zeros_like(like), torch.zeros_like(like)
    now = [torch.linalg.vector_norm(local(gradient), dtype=then.dtype) for then, gradient in known]
    before, after = (
        torch.stack([t.to(like) for t in each]).square().sum() for each in ([then for then, _ in known], now)
    )
    return before, after


def checked_scaler(scaler: Any) -> torch.amp.GradScaler | None:
    """A GradScaler, or nothing."""
    require(scaler is None or isinstance(scaler, torch.amp.GradScaler), "scaler", "a GradScaler", scaler)
    return scaler


def scale_of(scaler: torch.amp.GradScaler | None, like: Tensor) -> Tensor | None:
    """What a GradScaler multiplies losses with; its device is not waited for."""
    if scaler is None:
        return None
    scale = scaler.scale(torch.ones_like(like))
    assert isinstance(scale, Tensor)
    return scale


def parted(ratio: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What a GradScaler multiplied gradients with, and what clipping has left of them.

    Only the ratio of norms, clipping / scale, can be seen. A scale that is not given is taken to be the largest power
    of two that fits, which is too large if clipping has left less than half. Scales are large; clipping to less than a
    thousandth of a gradient does not happen.
    """
    if scale is None:
        scale = torch.where(ratio <= 2.0**-10, torch.exp2(torch.floor(-torch.log2(ratio.clamp_min(1e-30)))), 1.0)
    return scale, (ratio * scale).clamp_max(1.0)


def price_of(
    found: Statistics,
    parameters: Sequence[Tensor],
    estimates: int,
    replicas: Replicas,
    like: Tensor,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[Tensor, Tensor, Tensor | bool] | None:
    """The price ½ Σ (θ − m) ĝ of the samples since the last step, and how much of their gradients clipping has left.

    The last of the three tells whether that is a guess, as both a GradScaler and clipping have changed gradients.

    Args:
        found: The statistics of the samples.
        parameters: Those with gradients.
        estimates: How many gradients are averaged.
        replicas: The processes that hold the same model.
        like: A number on the device where the price is wanted.
        scaler: Which multiplied the losses, if it is known.
    """
    if not found.totals:
        return None
    kept, total = found.kept, torch.stack([t.to(like) for t in found.totals]).sum() / estimates
    measured = torch.stack([total, *sizes([(kept[p].norm, p) for p in parameters if p in kept], like)])
    shards = next((p for p in parameters if sharded(p)), None)
    several = len(found.totals) > 1  # of which some may be of gradients that were not averaged yet
    if shards is not None:
        measured = summed(measured, shards)
    elif replicas.count > 1 and (several or replicas.per_rank):
        replicas.average([measured])
    total, before, now = measured
    given = scale_of(scaler, like)
    scale, clipping = parted(torch.where(before > 0, now / before, 1.0).sqrt(), given)
    return 0.5 * total / scale, clipping, False if given is not None else (scale > 1) & (clipping < 0.999)


def plain(x: Tensor | float) -> Tensor | float:
    """Numbers on the CPU as Python's, which arithmetic takes faster."""
    return float(x) if isinstance(x, Tensor) and x.device.type == "cpu" else x
