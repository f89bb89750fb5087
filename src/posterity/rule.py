"""The Bayesian learning rule: one step, plain or retracted, and the loop around it.

    λ ← λ − ρ ∇_μ ( E_q[ℓ] − τ H(q) )  =  (1 − τρ) λ − ρ ∇_μ E_q[ℓ + τ log h]

For Gaussians the same step, in the mean m and the precision S, reads

    S ← S + ρ G,   m ← m − ρ S⁻¹ E_q[∇ℓ],   G = E_q[∇²ℓ] − τS

with the new S in the second equation. Retraction, square root, slow scale, debiasing and decoupled decay are options
of this form.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected, require, require_positive, require_whole
from posterity.families import ConditionalFamily, Coordinates, DiagonalGaussian, Family, Gaussian
from posterity.gradients import AnyFamily, AnyLoss, DataLoss, Estimator, Loss
from posterity.gradients.gaussian import times, to_derivatives
from posterity.gradients.losses import as_function
from posterity.linalg import cholesky, retract, retract_diagonal, solve_psd
from posterity.progress import track

Q = TypeVar("Q", bound=AnyFamily)
Schedule = Callable[[int], float]
_LONG = 100  # steps from which a run shows its progress


def robbins_monro(delay: float = 1.0, forgetting: float = 0.7) -> Schedule:
    """The step sizes ρ_t = (t + delay)^−κ, whose sum diverges while that of their squares does not.

    Args:
        delay: Larger values slow the first steps down.
        forgetting: κ in (½, 1]: how fast early iterates are forgotten.

    Examples:
        >>> schedule = robbins_monro(delay=0.0, forgetting=1.0)
        >>> [schedule(t) for t in (1, 2, 4)]
        [1.0, 0.5, 0.25]
    """
    require(delay >= 0.0, "delay", "a number >= 0", delay)
    require(0.5 < forgetting <= 1.0, "forgetting", "a number in (0.5, 1]", forgetting)
    return lambda t: (t + delay) ** -forgetting


class Iterate(NamedTuple, Generic[Q]):
    """What a callback receives: the number of the step (from 1), its size, q after it, and how far λ moved."""

    step: int
    lr: float
    q: Q
    change: float


@dataclass(frozen=True)
class State(Generic[Q]):
    """Between two steps: q, the velocity of heavy-ball momentum, and how many steps have been taken."""

    q: Q
    velocity: Coordinates
    steps: int = 0


@dataclass(frozen=True)
class BayesianLearningRule:
    """λ ← λ − ρ ∇_μ ( E_q[ℓ] − τ H(q) ), with the named approximations that make the algorithms of Table 1.

    Args:
        gradient: The estimator of ∇_μ E_q[ℓ].
        lr: ρ, a number or a schedule t ↦ ρ_t (t counts from 1).
        prior: A member of q's family (for a mixture: a family of its θ), where the loss does not contain one: it adds
            −log p₀ to the loss.
        temperature: τ, the weight of the entropy.
        retracted: For Gaussians, S ← S + ρG + ½ρ² G S⁻¹ G, positive definite for any step and any G; the mean step
            uses the old S (the improved rule).
        momentum: Heavy ball: the gradient (for Gaussians: that of the mean) becomes v ← βv + gradient.
        slow_scale: β₂: the precision moves with step 1 − β₂ instead of ρ.
        square_root: ε: the mean step divides by √S + ε instead of S. For diagonal Gaussians.
        debias: Divide the sums behind momentum and slow scale by the sums of their weights.
        decay: Decoupled weight decay: m ← (1 − ρ·decay) m before the step.

    Examples:
        Newton's method is a Gaussian, the delta method and ρ = 1:

        >>> from posterity.gradients import Delta
        >>> newton = BayesianLearningRule(Delta(), lr=1.0)
        >>> q = newton.step(Gaussian.standard(2), lambda theta: 2.0 * (theta - 3.0) @ (theta - 3.0))
        >>> q.mean
        tensor([3., 3.], dtype=torch.float64)

    References:
        Khan and Rue, "The Bayesian learning rule", 2023. Lin, Schmidt and Khan, "Handling the positive-definite
        constraint in the Bayesian learning rule", 2020.
    """

    gradient: Estimator
    lr: float | Schedule = 1.0
    _: KW_ONLY
    prior: Family | None = None
    temperature: float = 1.0
    retracted: bool = False
    momentum: float = 0.0
    slow_scale: float | None = None
    square_root: float | None = None
    debias: bool = False
    decay: float = 0.0

    def __post_init__(self) -> None:
        require(isinstance(self.gradient, Estimator), "gradient", "an estimator such as Delta()", self.gradient)
        if not callable(self.lr):
            require_positive("lr", self.lr)
        require(0.0 <= self.temperature < math.inf, "temperature", "a finite number >= 0", self.temperature)
        require(0.0 <= self.momentum < 1.0, "momentum", "a number in [0, 1)", self.momentum)
        require(self.slow_scale is None or 0 <= self.slow_scale < 1, "slow_scale", "in [0, 1)", self.slow_scale)
        require(self.square_root is None or self.square_root >= 0, "square_root", "ε >= 0", self.square_root)
        require(self.decay >= 0.0, "decay", "a number >= 0", self.decay)
        averages = self.momentum > 0 or self.slow_scale is not None
        require(averages or not self.debias, "debias", "momentum or slow_scale to debias", "neither")

    def step(self, q: Q, loss: AnyLoss) -> Q:
        """One step from q. Momentum and schedules need more than q: their steps follow each other in `run`."""
        return self.advance(self.start(q), loss).q

    def run(
        self,
        q: Q,
        loss: AnyLoss | Iterable[AnyLoss],
        steps: int,
        *,
        tolerance: float | None = None,
        callback: Callable[[Iterate[Q]], object] | None = None,
    ) -> Q:
        """Many steps from q.

        Args:
            q: Where to start.
            loss: The total loss, or one for each step (`DataLoss.minibatches`).
            steps: How many steps, at most.
            tolerance: Stop when no entry of a block of λ moves by more than this, relative to the block's largest
                entry (or to 1). Warns when the steps ran out first.
            callback: Called with an `Iterate` after each step; the run stops where it returns True. The `append`
                of a list keeps the history.

        Returns:
            q after the last step.
        """
        require_whole("steps", steps)
        losses = itertools.islice(_one_a_step(loss), steps)
        state = self.start(q)
        change = float("inf")
        for current in track(losses, "learning", total=steps, show=None if steps >= _LONG else False):
            before, state = state, self.advance(state, current)
            change = relative_change(before.q.natural, state.q.natural)
            seen = Iterate(state.steps, self._lr(state.steps), state.q, change)
            if (callback is not None and callback(seen) is True) or (tolerance is not None and change <= tolerance):
                return state.q
        if tolerance is not None:
            message = f"λ still moves by {change:.2g} after {state.steps} steps (tolerance {tolerance:.2g})"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return state.q

    def start(self, q: Q) -> State[Q]:
        """The state before the first step."""
        return State(q, ())

    def advance(self, state: State[Q], loss: AnyLoss) -> State[Q]:
        """One step from a state to the next."""
        step = state.steps + 1
        gaussian = isinstance(state.q, Gaussian | DiagonalGaussian)
        try:
            gradient = (self._derivatives if gaussian else self.natural_gradient)(state.q, loss)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as why:
            wanted = f"a function of θ, of dtype {state.q.natural[0].dtype}, that returns one number as a tensor"
            raise InvalidInput(f"loss: expected {wanted}, got an error: {why}") from why
        finite = all(bool(block.isfinite().all()) for block in gradient)
        require(finite, f"gradient of the loss at step {step}", "finite entries", "NaN or infinity")
        try:
            q, velocity = self._move(state.q, state.velocity, gradient, step)
        except InvalidInput as error:
            hint = "a smaller lr may help; so does retracted=True for Gaussians"
            raise InvalidInput(
                f"step {step} with lr = {self._lr(step):g} leaves the family ({hint}): {error}"
            ) from error
        return State(q, velocity, step)

    def natural_gradient(self, q: AnyFamily, loss: AnyLoss) -> Coordinates:
        """∇_μ ( E_q[ℓ] − τ H(q) ), zero at the posterior.

        The entropy has the gradient −λ − ∇_μ E_q[log h]. That of a mixture has no closed form: its −τ log q is
        taken into the expectation.
        """
        self._check(q, loss)
        if isinstance(q, ConditionalFamily):
            return self.gradient(q, self._with_log_density(q, loss))
        base = q.base_measure_gradient()
        blocks = zip(self.gradient(q, loss), q.natural, base, strict=True)
        total = tuple(g + self.temperature * (natural + h) for g, natural, h in blocks)
        if self.prior is None:
            return total
        return tuple(g - natural - h for g, natural, h in zip(total, self.prior.natural, base, strict=True))

    def _derivatives(self, q: Any, loss: AnyLoss) -> Coordinates:
        """The same gradient for a Gaussian, as that of the mean and the direction of the precision."""
        self._check(q, loss)
        diagonal = isinstance(q, DiagonalGaussian)
        slope, curvature = self.gradient.derivatives(q, loss, diagonal)
        direction = curvature - self.temperature * q.precision
        if not isinstance(self.prior, Gaussian | DiagonalGaussian):
            return slope, direction
        pull = times(self.prior.precision, q.mean - self.prior.mean, diagonal)
        return slope + pull, direction + self.prior.precision

    def free_energy(self, q: AnyFamily, loss: AnyLoss) -> Tensor:
        """E_q[ℓ] − τ H(q), what the rule minimises; at an exact posterior, −log of the evidence."""
        self._check(q, loss)
        if isinstance(q, ConditionalFamily):
            return self.gradient.expectation(q, self._with_log_density(q, loss))
        value = self.gradient.expectation(q, loss) - self.temperature * q.entropy()
        return value if self.prior is None else value + q.entropy() + q.kl(self.prior)

    def _with_log_density(self, q: ConditionalFamily, loss: AnyLoss) -> Loss:
        """ℓ + τ log q − log p₀, as a function of θ."""
        function, prior = as_function(loss), self.prior
        if prior is None:
            return lambda theta: function(theta) + self.temperature * q.log_prob(theta)
        return lambda theta: function(theta) + self.temperature * q.log_prob(theta) - prior.log_prob(theta)

    def _lr(self, step: int) -> float:
        if not callable(self.lr):
            return self.lr
        lr = self.lr(step)
        require_positive(f"lr at step {step}", lr)
        return lr

    def _check(self, q: AnyFamily, loss: AnyLoss) -> None:
        """Raise where q, the options, the prior and the loss do not go together."""
        require(isinstance(q, AnyFamily), "q", "a member of a family", q)
        moved = q.conditional if isinstance(q, ConditionalFamily) else q
        if not isinstance(moved, Gaussian | DiagonalGaussian):
            for name in self._gaussian_options():
                raise expected(name, "a Gaussian q with a learnt precision", type(q).__name__)
        if self.square_root is not None and isinstance(moved, Gaussian):
            raise expected("square_root", "a DiagonalGaussian q", type(q).__name__)
        if self.prior is None:
            return
        if isinstance(q, Family) and not q.same_family(self.prior):
            raise expected("prior", f"a member of the family of {q!r}, with its constants", self.prior)
        if isinstance(q, ConditionalFamily) and self.prior.mean.shape[-1:] != q.mean.shape[-1:]:
            raise expected("prior", f"a family of θ with {q.mean.shape[-1]} entries, as q has", self.prior)
        if isinstance(loss, DataLoss) and loss.regulariser is not None:
            raise expected("prior", "a prior of the rule or a regulariser of the loss", "both")

    def _move(self, q: Any, velocity: Coordinates, gradient: Coordinates, step: int) -> tuple[Any, Coordinates]:
        """The member of q's kind after a step, and its velocity; Gaussians move by their derivatives."""
        if isinstance(q, ConditionalFamily):
            cut = len(q.mixing.natural)
            mixing, rolled = self._move_natural(q.mixing, velocity[:cut], gradient[:cut], step)
            derivatives = to_derivatives(q.conditional.mean, gradient[cut:], diagonal=False)
            conditional, velocity = self._move(q.conditional, velocity[cut:], derivatives, step)
            return q.with_parts(mixing, conditional), rolled + velocity
        if isinstance(q, Gaussian | DiagonalGaussian):
            return self._move_gaussian(q, velocity, gradient, step)
        return self._move_natural(q, velocity, gradient, step)

    def _gaussian_options(self) -> list[str]:
        """The options in use that only a Gaussian with a learnt precision has."""
        given = {"slow_scale": self.slow_scale is not None, "square_root": self.square_root is not None}
        given |= {"retracted": self.retracted, "decay": self.decay > 0.0}
        return [name for name, used in given.items() if used]

    def _move_natural(
        self, q: Family, velocity: Coordinates, gradient: Coordinates, step: int
    ) -> tuple[Family, Coordinates]:
        velocity = self._roll(velocity, gradient)
        pushes = zip(q.natural, self._unbiased(velocity, step), strict=True)
        return q.with_natural(tuple(natural - self._lr(step) * push for natural, push in pushes)), velocity

    def _move_gaussian(
        self, q: Gaussian | DiagonalGaussian, velocity: Coordinates, gradient: Coordinates, step: int
    ) -> tuple[Gaussian | DiagonalGaussian, Coordinates]:
        diagonal, lr = isinstance(q, DiagonalGaussian), self._lr(step)
        slope, direction = gradient
        precision = self._move_precision(q.precision, direction, lr, diagonal)
        velocity = self._roll(velocity, (slope,))
        (push,) = self._unbiased(velocity, step)
        scale = self._scale(q.precision if self.retracted else precision, step)
        push = push / scale if diagonal else solve_psd(cholesky(scale, "precision"), push)
        return type(q)((1.0 - lr * self.decay) * q.mean - lr * push, precision), velocity

    def _move_precision(self, precision: Tensor, direction: Tensor, lr: float, diagonal: bool) -> Tensor:
        step = lr if self.slow_scale is None else 1.0 - self.slow_scale
        if self.retracted:
            return (retract_diagonal if diagonal else retract)(precision, direction, step)
        moved = precision + step * direction
        if self.square_root is None:
            return moved
        # A scale that no gradient feeds fades away; ε takes over long before it would underflow to zero.
        return torch.where(moved < 0.0, moved, moved.clamp(min=torch.finfo(moved.dtype).tiny))

    def _scale(self, precision: Tensor, step: int) -> Tensor:
        """What the mean step divides by."""
        if self.debias and self.slow_scale is not None:
            precision = precision / (1.0 - self.slow_scale**step)
        if self.square_root is None:
            return precision
        return precision.sqrt() + self.square_root

    def _roll(self, velocity: Coordinates, gradient: Coordinates) -> Coordinates:
        """v ← βv + gradient."""
        if not velocity:
            return gradient
        return tuple(self.momentum * v + g for v, g in zip(velocity, gradient, strict=True))

    def _unbiased(self, velocity: Coordinates, step: int) -> Coordinates:
        """The velocity, divided by 1 + β + … + β^(t−1) where debiasing makes it an average."""
        if not self.debias:
            return velocity
        weights = (1.0 - self.momentum**step) / (1.0 - self.momentum)
        return tuple(v / weights for v in velocity)


def _one_a_step(loss: AnyLoss | Iterable[AnyLoss]) -> Iterable[AnyLoss]:
    if isinstance(loss, Iterable) and not callable(loss):
        return loss
    return itertools.repeat(loss)


def relative_change(old: Coordinates, new: Coordinates) -> float:
    """The largest move of an entry of λ, relative to the largest entry of its block (or to 1)."""
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a.numel()]  # one class alone has no log-odds
    return max((((b - a).abs().amax() / a.abs().amax().clamp(min=1.0)).item() for a, b in pairs), default=0.0)
