"""Variational: any torch optimizer for the mean, and beside it the width of a posterior at a price that is held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import StateDict

from posterity.errors import require, require_positive, require_whole
from posterity.likelihoods import Likelihood
from posterity.optim import _bases
from posterity.optim._diagnostics import DiagnosedWeights, Diagnostics, diagnose
from posterity.optim._distributed import Noise, home, local, over_shards, placed_as, summed, whole
from posterity.optim._forms import check_many
from posterity.optim._fused_adam import FusedAdam
from posterity.optim._looks import looks
from posterity.optim._meter import COLD, DECAY, SMALLEST, Meter, check_numbers, checked_scaler, plain, price_of
from posterity.optim._normalised import QUIET, Normalised
from posterity.optim._options import Options, check_seed, option
from posterity.optim._watching import Watching
from posterity.optim.engine import _priors
from posterity.optim.engine._parameters import Group
from posterity.optim.gap import UNKNOWN, largest
from posterity.optim.kernels import Numbers, Piece, Views, statistics
from posterity.optim.price import WINDOW
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype


@dataclass(frozen=True, kw_only=True)
class VariationalOptions(Options):
    """The options of a parameter group for `Variational`; the rest of the group belongs to the base."""

    seed: int = option(check_seed)


class Variational(Watching):
    """A posterior beside any optimizer: the base moves the mean as before, with gradients at noisy weights.

        θ = m + σ ε,   σ² = 1 / (λ (h + δ)),   h = B v̂
        m ← base(m, ∇ℓ(θ))
        c = ½ Σ (θ − m) ∇ℓ(θ),   λ = max(N, P̂ / 2b),   P̂ = Σ 2c / Σ (1/λ)

    The mean may take any preconditioner that is independent of the gradient's noise: the fixed point, E_q[∇ℓ] + δm = 0
    with precision λ (h + δ), stays the same. So the base keeps its learning rate, schedule, weight decay and state. v̂
    is its second moment where it has one (Adam, AdamW), and an average of squared gradients otherwise. A weight that is
    0 and never had a gradient, as in the row of a padding token, gets no noise. The width costs c nats per example, and
    λ holds that price to a small budget b that opens as training proceeds; see `posterity.optim.price`. λ > N is a cold
    posterior: its temperature is N/λ.

    Args:
        base: A torch optimizer, or several that share the parameters (Muon on matrices, AdamW on the rest).
        n: Number N of examples that the mean loss averages over: tokens for a language model. Where inputs or targets
            are drawn anew in every epoch, as the noise of diffusion models, it counts all draws of training.
        total_steps: Length of training in steps; without it the budget follows the learning rate.
        batch_size: Examples (tokens) behind one gradient, over all processes and accumulated batches. Without it the
            scale of the curvature is the one at which squares of gradients agree with the measured price.
        budget: Largest price b of the noise, in nats per example. By default it follows `posterity.optim.gap`, between
            0.003 and 0.1, and is 0.03 over bases other than SGD and Adam's family.
        prior: Precision of N(0, 1/prior), a Diagonal, or a Posterior (at temperature 1). It enters the step of the
            mean, so the base must have no weight decay. By default the prior decides widths alone: N(0, s²) for each
            tensor with mean square s².
        mc_samples: Samples for each `step(closure)`.
        seed: Seed of the noise.
        fused: Whether kernels may take samples and steps over Adam and AdamW, where there are some. They take over from
            the first noise on, and steps of several samples, or of bases with hooks, use tensor operations.
        noise: Of the replicas of a model on many processes: "shared", or "per_rank" for a sample on each.
        process_group: The processes that hold replicas; all by default.
        scaler: The GradScaler that multiplies the loss, if there is one. Where gradients are clipped to less than half,
            their norms alone do not tell its factor.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> optimizer = Variational(torch.optim.AdamW(model.parameters(), lr=1e-3), n=1000, total_steps=100)
        >>> with optimizer.sampled_params(train=True):
        ...     model(torch.ones(8, 2)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
    """

    options = VariationalOptions
    widths = ()
    written = ()
    _fused: FusedAdam
    faster = "more steps"

    def __init__(
        self,
        base: Optimizer | Sequence[Optimizer],
        *,
        n: float,
        total_steps: int | None = None,
        batch_size: int | None = None,
        budget: float | None = None,
        prior: float | Diagonal | Posterior | None = None,
        mc_samples: int = 1,
        seed: int = 0,
        fused: bool | None = None,
        noise: Noise = "shared",
        process_group: Any = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        require_positive("n", n)
        require_positive("budget", 1.0 if budget is None else budget)
        for name, value in (("total_steps", total_steps), ("batch_size", batch_size)):
            require_whole(name, 1 if value is None else value)
        require((batch_size or 1) <= n, "batch_size", f"at most n={n:g}, counted in the same examples", batch_size)
        self.n, self.scaler = float(n), checked_scaler(scaler)
        self.deltas: dict[Tensor, Tensor | float] = {}
        self.normalised = Normalised()
        self._explicit, self._isotropic = prior is not None, 1.0
        engine = {"mc_samples": mc_samples, "fused": fused, "noise": noise, "process_group": process_group}
        super().__init__(base, VariationalOptions(seed=seed), **engine)
        weights = [local(p) for group in self.param_groups for p in group["params"]]
        tells = budget is not None or _bases.teaches(self.bases)
        self.meter = Meter.of(self.n, batch_size, total_steps, budget if tells else UNKNOWN, weights)
        if prior is not None:
            self.set_prior(prior)

    def _forget_transients(self) -> None:
        super()._forget_transients()
        self._samples.statistics.watched = True
        self._fused = FusedAdam(self)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @contextmanager
    def sampled_params(self, train: bool = False, *, until_step: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
            until_step: Where fused kernels take a step from one sample, leave it in place until `step`; see `IVON`.
        """
        self._samples.until_step = until_step
        with super().sampled_params(train):
            yield

    # ── the width ────────────────────────────────────────────────────────────────────────────────────────────────

    def initial_state(self, p: Tensor, options: VariationalOptions) -> Views:
        own: tuple[str, ...] = ("hessian", "average") if self.meter.by_price else ("squares",)
        if not self.meter.by_price and _bases.keeps_squares(self.base_of(p)[0]):
            return {}
        return {name: torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False) for name in own}

    def _curvature(self, p: Tensor) -> tuple[Tensor, Tensor | float] | None:
        """What the curvature h of a parameter is a multiple of, and the factor; None before its first step."""
        state = self.state.get(p, {})
        if self.meter.by_price:
            return (_bases.positive(state["hessian"]), 1.0) if "hessian" in state else None
        found = _bases.squares(*self.base_of(p), p, state)
        return None if found is None else (found[0], found[1] * self.meter.examples())

    def width_state(self, p: Tensor) -> Views:
        state, found = self.state.get(p, {}), self._curvature(p)
        view = {"p": p.detach()} | {name: state[name] for name in ("prior_precision",) if name in state}
        return view if found is None else {"curvature": found[0], **view}

    def numbers(self, p: Tensor, options: VariationalOptions) -> Numbers:
        found = self._curvature(p)
        silent = self.meter.silent or found is None or p not in self.deltas
        ess, scale = math.inf if silent else self.meter.price.ess, 0.0 if found is None else found[1]
        delta, still = self.deltas.get(p, math.inf), 1.0 if self._explicit else QUIET
        return {"ess": plain(ess), "scale": plain(scale), "delta": plain(delta), "still": still}

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        if isinstance(numbers["ess"], float) and math.isinf(numbers["ess"]):
            return math.inf  # no noise yet
        h = view["curvature"] * numbers["scale"] if "curvature" in view else 0.0
        return _bases.with_delta(h, view, numbers) * numbers["ess"]

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        """Nothing: the bases update the mean, in `apply`."""

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, p: Tensor, tensors: Views, options: VariationalOptions, numbers: Numbers) -> None:
        mean = tensors["p"].to(state_dtype(p.dtype))
        if "gradients" in tensors or "estimates" in numbers:  # several estimates: the base steps from their average
            p.grad = placed_as(statistics(tensors, mean, numbers)[0].to(p.dtype).view_as(tensors["p"]), p)
        if "squares" in tensors and p.grad is not None:
            gradient = local(p.grad).to(tensors["squares"].dtype)
            tensors["squares"].lerp_(gradient.square(), 1 - DECAY)
        if "hessian" in tensors and p.grad is not None:
            self._learn_hessian(tensors, mean, local(p.grad).to(mean.dtype), numbers)

    def _learn_hessian(self, view: Views, mean: Tensor, gradient: Tensor, numbers: Numbers) -> None:
        """h ← h + ρ (ĥ − h) with Price's ĥ = (θ − m) (ĝ − ḡ) / σ², weighed by ρ ∝ 1/λ.

        ḡ averages the gradients of the steps before. It is independent of this noise, and ĥ has less variance with it.
        Before there is noise, h is B (ĝ − ḡ)², or B ĝ² where batches hardly differ.
        """
        h, product = view["hessian"], statistics(view, mean, numbers)[1]
        if self.meter.silent:
            away = gradient - view["average"] if 2 * self.meter.batch <= self.n else gradient
            h.lerp_(away.square() * self.meter.batch, 1 / max(self.meter.steps, 1))
        elif product is not None and numbers["ess"] != math.inf:
            if "product" not in view and "sample" in view:  # of one sample, whose noise is known
                product = product - (view["sample"].to(mean.dtype) - mean) * view["average"]
            h.lerp_(product * self.precision({**view, "curvature": _bases.positive(h)}, numbers), self.meter.news())
        view["average"].lerp_(gradient, max(0.1, 1 / (self.meter.steps + 1)))

    def apply(self, pieces: list[Piece]) -> None:
        """Measure the price, set λ for the next sample, and let the bases step from the gradients.

        All that the next sample depends on is known before the weights move, so that kernels can draw it while they do.
        """
        if not (parameters := [p for p in self._trained() if p.grad is not None]):
            return
        self._measure(parameters, max(int(piece.numbers.get("estimates", 1)) for piece in pieces))
        if self.meter.silent:
            self.normalised.look(parameters)
        meter, lr = self.meter, max(float(group["lr"]) for group in self.param_groups)
        if meter.stepped(lr):
            self._look()
            if meter.follows and meter.steps > COLD:
                self._learn_gap(lr)
        _bases.add(parameters, self._pull_of, self.base_of)
        if not meter.silent:
            meter.hold(lr, self.normalised.share)
        _bases.step(self.bases)
        self.stepped()

    def stepped(self, wait: bool = False) -> None:
        """Warn about problems of the run, if there are any; `wait` for a device that may not know yet."""
        for message in self.meter.complaints(wait):
            self._warn(message)

    def _measure(self, parameters: list[Tensor], estimates: int) -> None:
        """The price of the samples since the last step, and how much of their gradients clipping has left."""
        statistics, replicas, like = self._samples.statistics, self._replicas, self.meter.scale
        found = price_of(statistics, parameters, estimates, replicas, like, self.scaler)
        if found is not None:
            downhill = -1 if any(group.get("maximize", False) for group in self.param_groups) else 1
            self.meter.measure(downhill * found[0], *found[1:])

    def _look(self) -> None:
        """Look at all weights: the width of each tensor's prior, and Σ h/(h + δ)."""
        self.meter.rescale()
        total = torch.zeros_like(self.meter.total)
        for p in self._trained():
            self.deltas[p] = self._delta(p)
            if self._curvature(p) is not None:
                view = {name: local(t) for name, t in self.width_state(p).items()}
                numbers = self.numbers(p, self.options_of(self.base_of(p)[1])) | {"ess": 1.0}
                total = total + (view["curvature"] * numbers["scale"] / self.precision(view, numbers)).sum().to(total)
        self.meter.total = over_shards(total, self._trained())

    def _learn_gap(self, lr: float) -> None:
        """What examples do for their own loss in this step, and what larger weights would gain."""
        found = looks(self.base_of, self._trained(), self._pull_of, self.meter.total)
        doing, gains = (over_shards(each, self._trained()) for each in found)
        self.meter.learn_gap(doing.sum(), largest(gains), lr)

    def _pull_of(self, p: Tensor) -> Tensor | None:
        return _bases.pull(p, self.state.get(p, {}), self.given_prior, self.n)

    def _delta(self, p: Tensor) -> Tensor | float:
        """δ = P₀/N; P₀ is the given prior's precision, or one over the mean square of the tensor's weights."""
        if self._explicit:
            return self._isotropic / self.n
        square = summed(local(p.detach()).to(state_dtype(p.dtype)).square().sum(), p) / max(p.numel(), 1)
        delta = 1 / (self.n * square.clamp_min(SMALLEST))
        return delta * QUIET if p in self.normalised else delta

    # ── the prior and the posterior ──────────────────────────────────────────────────────────────────────────────

    def set_prior(self, prior: float | Diagonal | Posterior) -> None:
        """Take a Gaussian prior at temperature 1, in place of weight decay."""
        decayed = _bases.decay(self.bases)
        require(decayed == 0, "base", "weight_decay=0 beside a prior, which has the same effect", decayed)
        self._explicit = True
        if isinstance(prior, (int, float)):
            self._isotropic = _bases.checked_precision(prior)
        else:
            super().set_prior(prior.as_prior() if isinstance(prior, Posterior) else prior)

    @property
    def given_prior(self) -> float | None:
        """The precision of a prior that was given as one number."""
        return self._isotropic if self._explicit else None

    @property
    def temperature(self) -> float:
        """N/λ: 1 for the posterior of Bayes' rule, less for a colder one."""
        return self.n / float(self.meter.price.ess)

    def precision_of(self, p: Tensor, group: Group) -> Tensor:
        found = self.precision(*self._width_of(p, group))
        return torch.as_tensor(found, dtype=state_dtype(p.dtype), device=home(p)).expand(p.shape)

    def _width_of(self, p: Tensor, group: Group) -> tuple[Views, Numbers]:
        numbers = self.numbers(p, self.options_of(group)) | {"ess": self.meter.price.ess}
        return {name: whole(t) for name, t in self.width_state(p).items()}, {k: float(x) for k, x in numbers.items()}

    def _prior_of(self, p: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state.get(p, {})
        if "prior_precision" in state:
            return whole(state["prior_mean"]), whole(state["prior_precision"])
        mean = torch.zeros(p.shape, dtype=state_dtype(p.dtype), device=home(p))
        return mean, mean + _bases.with_delta(torch.zeros_like(mean), *self._width_of(p, self.base_of(p)[1])) * self.n

    def _settle(self) -> None:
        """Put the mean in place; before there is any noise, find the widths that an open budget would give."""
        self._fused.catch_up()
        require(self.meter.steps > 0, "posterior", "at least one step before it", "none")
        self._put_mean()
        self.stepped(wait=True)
        if self.meter.silent:
            self.finish()
        self.deltas |= {p: self._delta(p) for p in self._trained() if p not in self.deltas}  # added since the last look

    @torch.no_grad()
    def finish(self) -> None:
        """Solve λ for the whole budget at the present weights, where training ended before `total_steps`."""
        self._put_mean()
        self._fused.catch_up()
        self._look()
        self.meter.finish(self.normalised.share)

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int | None = None) -> Posterior:
        """Return the posterior N(m, 1/(λ (h + δ))) of a model; its prior is tempered likewise, to λδ.

        A prior that only decides widths has not pulled the mean. The posterior has it centred at m, where it leaves the
        mean in place: what is trained on from here under it, as `posterity.adapt` does, would fall to 0 otherwise.

        Args:
            model: The model whose parameters this optimizer trains.
            likelihood: What the model's outputs mean.
            n: Number of training examples; N by default.
        """
        self._settle()
        names = _priors.trained(self._parameters, model)
        prior = {name: self._prior_of(p) for name, p in names.items()}
        if not self._explicit:
            prior = {name: (whole(p).to(prior[name][0]), prior[name][1]) for name, p in names.items()}
        return Posterior.of(
            model,
            self.structure(names),
            prior=_bases.tempered(prior, self.temperature),
            n=int(self.n) if n is None else n,
            ess=float(self.meter.price.ess),
            likelihood=likelihood,
            output_temperature=self.output_temperature(),
        )

    @torch.no_grad()
    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """Widths, signal to noise, KL, temperature, the price of the noise and more.

        Args:
            loss: The mean loss per example, for −N · loss − KL: an evidence lower bound, computed where λ = N alone.
        """
        self._settle()
        temperature, bound = self.temperature, loss if self.temperature == 1 else None
        skipped = max(int(group["skipped"]) for group in self.param_groups)
        known = [(p, self.precision_of(p, self.base_of(p)[1]), self._prior_of(p)) for p in self._trained()]
        parts = (
            DiagnosedWeights(whole(p), precision, prior, self.state.get(p, {}), 0, 0.0) for p, precision, prior in known
        )
        found = diagnose(parts, steps=self.meter.steps, skipped=skipped, ess=self.n, loss=bound)
        price, effective = float(self.meter.price.paid) / WINDOW / 2, float(self.meter.parameters)
        return replace(found, temperature=temperature, price=price, effective_parameters=effective)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def own_state(self) -> StateDict:
        self._fused.catch_up()
        deltas = [float(self.deltas.get(p, 0.0)) for p in self._trained()]
        return {"meter": self.meter.state(), "deltas": deltas, "normalised": self.normalised.state(self._trained())}

    def check_own_state(self, found: StateDict) -> None:
        check_numbers(found["meter"], self.meter.state())
        others = {"delta": found["deltas"], "normalised": chain.from_iterable(found["normalised"])}
        check_numbers({f"{what} {i}": value for what, values in others.items() for i, value in enumerate(values)})

    def load_own_state(self, found: StateDict) -> None:
        check_many(found, ("deltas", "normalised"), len(trained := list(self._trained())))
        self.meter, pairs = self.meter.loaded(found["meter"]), zip(trained, found["deltas"], strict=True)
        self.deltas = {p: local(p.detach()).new_full((), d, dtype=state_dtype(p.dtype)) for p, d in pairs if d}
        self.normalised = Normalised.of(trained, found["normalised"])

    def __getstate__(self) -> dict[str, Any]:
        names = ("n", "scaler", "meter", "deltas", "normalised", "_explicit", "_isotropic")
        return super().__getstate__() | {name: self.__dict__[name] for name in names}
