"""IVON, the improved variational online Newton method: a diagonal Gaussian posterior at the cost of Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import require, require_whole
from posterity.optim._auto import FIRST, Auto, HeldPrice, decided
from posterity.optim._auto import usual_start as usual_start
from posterity.optim._distributed import Noise, every, local, summed
from posterity.optim._meter import UNCLEAR, check_numbers, checked_scaler
from posterity.optim._options import (
    GaussianOptions,
    betas_of_ivon_opt,
    check_betas,
    check_flag,
    check_size_or_none,
    check_whole_or_none,
    check_word,
    floats,
    in_range,
    number,
    option,
)
from posterity.optim._terms import delta, pull, size
from posterity.optim.engine import VariationalOptimizer
from posterity.optim.kernels import Coefficients, Numbers, Piece, Views, statistics
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype

AUTO_BIAS = 0.05  # the largest relative bias of the Hessian that β₂ = "auto" lets stand
AUTO_MEMORIES = 5.0  # at most so many time constants of the Hessian's average fit into training
LARGE_DECAY, LARGE_PRIOR = 0.01, 100.0  # where weight decay looks like AdamW's, and the precision of its prior
SHORT_STEP = 1e-6  # that no weight notices
SCALARS = ("forgetting", "level", "scatter", "spread")  # what is kept about a whole parameter, see `observe`


@dataclass(frozen=True, kw_only=True)
class IVONOptions(GaussianOptions):
    """The options of a parameter group of IVON, which its class explains."""

    betas: tuple[float, float | Literal["auto"]] = option(partial(check_betas, auto=True))
    clip_radius: float = in_range("clip_radius", "a positive number")
    debias: bool = option(partial(check_flag, "debias"))
    rescale_lr: bool = option(partial(check_flag, "rescale_lr"))
    hess_approx: Literal["price", "gradsq"] = option(partial(check_word, "hess_approx", words=("price", "gradsq")))
    total_steps: int | None = option(partial(check_whole_or_none, 'total_steps, for beta2="auto"'))
    batch_size: int | None = option(partial(check_whole_or_none, 'batch_size, for "gradsq"'))
    n: float | None = option(check_size_or_none)
    holds_price: bool = option(partial(check_flag, "holds_price"))
    forgets_start: bool = option(partial(check_flag, "forgets_start"))

    def check(self) -> None:
        super().check()
        if self.betas[1] == "auto":
            require_whole('total_steps, for beta2="auto"', self.total_steps)
        require(self.n is not None or not self.holds_price, "n", 'the number of examples, for ess="auto"', None)
        if self.squares:
            require_whole('batch_size, for "gradsq"', self.batch_size)

    def doubts(self) -> Iterator[str]:
        prior, longest = self.ess * self.weight_decay, self.lr * self.lr_scale * self.clip_radius
        if self.weight_decay >= LARGE_DECAY and prior >= LARGE_PRIOR:
            yield (
                f"weight_decay={self.weight_decay:g} with ess={self.ess:g} is a prior of precision {prior:g}, which "
                "holds weights to almost zero: it is not decoupled as in AdamW; take 1e-4 or 1/ess"
            )
        if 0 < longest < SHORT_STEP:
            yield (
                f"clip_radius={self.clip_radius:g} allows no step longer than lr * (hess_init + weight_decay) * "
                f"clip_radius = {float(longest):.0e}: set rescale_lr=False or a larger clip_radius"
            )

    @property
    def squares(self) -> bool:
        """Whether the Hessian is learnt from squared gradients."""
        return self.hess_approx == "gradsq"

    @property
    def lr_scale(self) -> float:
        """What `rescale_lr` multiplies the learning rate with."""
        start = float(self.hess_init + self.weight_decay)
        if self.forgets_start:
            start = min(start, 1.0)  # where h is unlearnt, a step of Newton's would be α = 1
        return start if self.rescale_lr else 1.0

    @property
    def rho1(self) -> float:
        """1 − β₁."""
        return 1 - self.betas[0]

    @property
    def rho2(self) -> float:
        """1 − β₂, or the largest that "auto" takes."""
        if isinstance(self.betas[1], str):
            assert self.total_steps is not None
            return min(AUTO_MEMORIES / self.total_steps, 0.5)
        return 1 - self.betas[1]


class IVON(VariationalOptimizer):
    """Improved variational online Newton (IVON).

    The posterior is N(m, σ²) with σ² = 1/(λ(h + δ)), where λ is `ess` and δ is `weight_decay`. From the gradient ĝ of
    the mean loss at θ = m + σε, in this order:

        ĥ = λ (h + δ) (θ − m) ĝ
        g ← β₁ g + (1 − β₁) ĝ
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)
        m ← m − α clip( (g / (1 − β₁ᵗ) + δ m) / (h + δ), ξ )

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate; α = lr · (hess_init + δ) with `rescale_lr`, so that the first steps are those of SGD.
        ess: Effective sample size λ: the number of training examples, or more for a colder posterior. "auto" starts
            from λ = N and holds the price of the noise to 0.03 nats per example: λ = max(N, P̂/0.06), with P̂ the
            measured number of effective parameters (see `posterity.optim.price`). The prior stays at temperature 1.
        hess_init: Initial value of h. "auto" starts from max(0.1, 300/N) and lets 1 − β₂ be at least 1/(t + 3), or
            less where that would inflate the Hessian by more than 5 %: the start loses its influence. α is at most lr.
        betas: β₁ and β₂; β₂ may be "auto" where `total_steps` is given: 1 − β₂ = 5 / total_steps, or less where
            that would inflate the Hessian by more than 5 %.
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        mc_samples: Samples for each `step(closure)`.
        clip_radius: ξ, bound on every component of the preconditioned direction.
        debias: Whether the momentum is divided by 1 − β₁ᵗ.
        rescale_lr: Whether lr is multiplied by hess_init + δ.
        hess_approx: "price" for ĥ as above, "gradsq" for ĥ = B ĝ² with B the `batch_size`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise; the same on every process.
        total_steps: Length of the training, for β₂ = "auto".
        batch_size: Examples behind each gradient, for "gradsq".
        fused: Whether kernels may do a sample or an update in one pass over memory: Triton's on a GPU, and on a CPU a
            C file that is compiled when it is first needed (some seconds, once on a machine). By default they do where
            Triton or a C compiler is found; True warns with the reason if they do not, False uses tensor operations.
        noise: On many processes that hold the same model: "shared" draws the same noise on all of them, "per_rank" a
            sample on each, for one more message of the size of the parameters.
        process_group: The processes that hold the same model; all by default.
        n: Number N of training examples, for "auto"; `ess` unless given. "auto" leaves all to tensor operations.
        scaler: The GradScaler that multiplies the loss, for "auto" beside clipping; see `Variational`.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused. Also
            `beta1` and `beta2`, as ivon-opt calls the two of `betas`.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = IVON([weight], lr=0.1, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Shen et al., "Variational learning is effective for large deep networks", 2024.
    """

    options = IVONOptions
    capturable = True
    widths = ("hessian", "prior_precision")
    written = ("momentum", "hessian")
    given = (*VariationalOptimizer.given, "linear", "quadratic")
    calmer = "a smaller lr, a larger ess or hess_init, or a clip_radius such as 1"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float | Auto,
        hess_init: float | Auto = 1.0,
        betas: tuple[float, float | Literal["auto"]] = (0.9, 0.99999),
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        clip_radius: float = math.inf,
        debias: bool = True,
        rescale_lr: bool = True,
        hess_approx: Literal["price", "gradsq"] = "price",
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        total_steps: int | None = None,
        batch_size: int | None = None,
        fused: bool | None = None,
        noise: Noise = "shared",
        process_group: Any = None,
        n: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        **torch_options: Any,
    ) -> None:
        self.scaler = checked_scaler(scaler)
        options = IVONOptions(
            lr=lr,
            **decided(ess, hess_init, n),
            betas=betas_of_ivon_opt(betas, torch_options),
            weight_decay=weight_decay,
            clip_radius=clip_radius,
            debias=debias,
            rescale_lr=rescale_lr,
            hess_approx=hess_approx,
            seed=seed,
            total_steps=total_steps,
            batch_size=batch_size,
        )
        super().__init__(
            params,
            options,
            mc_samples=mc_samples,
            prior=prior,
            fused=fused,
            noise=noise,
            process_group=process_group,
            torch_options=torch_options,
        )
        if options.holds_price:
            weights = [local(p) for p in self._trained()]
            assert options.n is not None
            self._held, self._samples.statistics.watched = HeldPrice(options.n, weights[0].device), True
            self._set_ess(self._held.held(float(sum(p.numel() for p in weights))))

    _held: HeldPrice | None = None

    def _set_ess(self, ess: float) -> None:
        for group in self.param_groups:
            group["ess"] = ess

    # ── the window of prices is state, too ───────────────────────────────────────────────────────────────────────

    def state_dict(self) -> StateDict:
        """The state, with plain numbers for counters on a device."""
        return super().state_dict() | ({} if self._held is None else {"price": self._held.state()})

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; one of other shapes is refused and changes nothing."""
        if self._held is not None:
            held = isinstance(state_dict, Mapping) and isinstance(state_dict.get("price"), Mapping)
            require(held, "state dict", 'one of IVON with ess="auto"', "one with a given ess")
            check_numbers(state_dict["price"], self._held.state())
        super().load_state_dict(state_dict)
        if self._held is not None:
            self._held.load(state_dict["price"])

    def __getstate__(self) -> dict[str, Any]:
        held = {} if self._held is None else {"_held": self._held}
        return super().__getstate__() | {"scaler": self.scaler, **held}

    # ── equations ────────────────────────────────────────────────────────────────────────────────────────────────

    def initial_state(self, p: Tensor, options: IVONOptions) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        hessian = torch.full_like(momentum, options.hess_init)
        return {"momentum": momentum, "hessian": hessian, **{name: momentum.new_zeros(()) for name in SCALARS}}

    def numbers(self, p: Tensor, options: IVONOptions) -> Numbers:
        beta1, auto = options.betas[0], options.betas[1] == "auto"
        numbers = {
            **floats(options, "ess", "weight_decay", "hess_init"),
            "rho1": options.rho1,
            "rho2": self._auto(p, options) if auto or options.forgets_start else options.rho2,
            "debias": 1 / (1 - beta1 ** max(self._steps(p), 1)) if options.debias else 1.0,
            "lr": number(options.lr) * options.lr_scale,
        }
        numbers |= floats(options, "clip_radius") if options.clip_radius < math.inf else {}
        numbers |= floats(options, "batch_size") if options.squares else {}
        numbers |= floats(options, "n") if options.holds_price else {}
        return numbers

    def coefficients(self, options: IVONOptions) -> Coefficients | None:
        if self.fused is False or options.holds_price or options.forgets_start:
            return None
        beta1, lr = options.betas[0], options.lr
        return Coefficients(
            ess=float(options.ess),
            delta=float(options.weight_decay),
            rho1=options.rho1,
            rho2=options.rho2,
            bias=2 * AUTO_BIAS if options.betas[1] == "auto" else math.inf,
            log_beta1=math.log(beta1) if options.debias and beta1 > 0 else -math.inf,
            lr=options.lr_scale * (1.0 if isinstance(lr, Tensor) else lr),
            clip_radius=float(options.clip_radius),
            batch_size=float(options.batch_size or 1),
            squares=options.squares,
        )

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @contextmanager
    def sampled_params(self, train: bool = False, *, until_step: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
            until_step: Where fused kernels take a step from one sample, leave it in place until `step`, which puts the
                mean back in its own pass over memory; code that reads the parameters in between sees the sample. A
                `zero_grad` before the step gives the sample up, as it does any other.
        """
        self._samples.until_step = until_step
        with super().sampled_params(train):
            yield

    def _auto(self, p: Tensor, options: IVONOptions) -> float | Tensor:
        """1 − β₂ from the length of training so far or at all, and small enough for the spread of ĥ seen so far."""
        spread, rho2 = self.state.get(p, {}).get("spread"), options.rho2
        if options.forgets_start:
            rho2 = max(rho2, 1 / (self._steps(p) + FIRST))
        return rho2 if spread is None else (2 * AUTO_BIAS / spread).clamp(max=rho2)

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        return (view.get("hessian", numbers["hess_init"]) + delta(view, numbers)) * numbers["ess"]

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        view["momentum"].lerp_(gradient, numbers["rho1"])
        surprise = _surprise(view, gradient, product, numbers)
        if surprise is not None:
            # With x = (1 − β₂)(ĥ − h)/(h + δ) the new h + δ is (h + δ)(1 + x + x²/2): positive whatever x.
            x = surprise.mul_(numbers["rho2"])
            view["hessian"].addcmul_(view["hessian"] + delta(view, numbers), x.addcmul_(x, x, value=0.5))
        direction = _direction(view, mean, numbers)
        if "clip_radius" in numbers:
            direction.clamp_(-numbers["clip_radius"], numbers["clip_radius"])
        mean.sub_(direction.mul_(numbers["lr"]))

    def apply(self, pieces: list[Piece]) -> None:
        """Update all parameters; where λ is automatic, measure the price first, and set λ for the steps to come."""
        held, due = self._held, False
        if held is not None:
            trained = [p for p in self._trained() if p.grad is not None]
            estimates = max(int(piece.numbers.get("estimates", 1)) for piece in pieces) if pieces else 1
            due = held.pay_for(self._samples.statistics, trained, estimates, self._replicas, self.scaler)
        super().apply(pieces)
        if held is not None and due:
            self._set_ess(held.held(sum(map(self._effective, trained))))
            if held.unclear:
                self._warn(UNCLEAR)

    def _effective(self, p: Tensor) -> float:
        """Σ h/(h + δ) of one parameter."""
        group = next(g for g, q in self._parameters if q is p)
        view = {name: local(t) for name, t in self._parameters.tensors(p).items() if t.ndim == p.ndim}
        share = (view["hessian"] / (view["hessian"] + delta(view, self.numbers(p, self.options_of(group))))).sum()
        return float(summed(share, p))

    def clipped(self, p: Tensor, options: IVONOptions) -> int:
        numbers, view = self.numbers(p, options), self._parameters.tensors(p)
        if "clip_radius" not in numbers or "momentum" not in view:
            return 0
        direction = _direction(view, p.to(state_dtype(p.dtype)), numbers)
        return int((direction.abs() > numbers["clip_radius"]).sum())

    def observe(self, p: Tensor, tensors: Views, options: IVONOptions, numbers: Numbers) -> None:
        """Keep how far ĥ scatters, and how much of the initial h is forgotten.

        The improved rule inflates the average Hessian by (1 − β₂)/2 times the spread E[(ĥ − h)²/(h + δ)] / E[ĥ + δ],
        which is measured on a part of the weights, at every tenth step once training is under way.
        """
        if tensors.keys().isdisjoint(("sample", "product")) and "batch_size" not in numbers:
            return
        state, step = self.state[p], self._steps(p)
        if p.numel() and (step <= 10 or step % 10 == 0):
            some = {name: every(t, p, 1 + p.numel() // 4096) for name, t in tensors.items()}
            mean, precision = some["p"].to(state_dtype(p.dtype)), some["hessian"] + delta(some, numbers)
            surprise = _surprise(some, *statistics(some, mean, numbers), numbers)
            assert surprise is not None
            weight = max(1 / (step if step <= 10 else 10 + step // 10), 0.02)
            parts = torch.stack([precision * (1 + surprise), precision * surprise**2, precision]).sum(1)
            level, scatter, width = summed(parts, p) / -(-p.numel() // (1 + p.numel() // 4096))
            state["level"].lerp_(level, weight)
            state["scatter"].lerp_(scatter, weight)
            state["spread"].copy_(state["scatter"] / torch.maximum(state["level"], width))
        if options.betas[1] == "auto" or options.forgets_start:
            numbers["rho2"] = self._auto(p, options)
        self.forget(p, numbers["rho2"])


def _surprise(view: Views, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> Tensor | None:
    """(ĥ − h)/(h + δ), or None where there is no noise to estimate ĥ from; overwrites the product."""
    hessian = view["hessian"]
    precision = hessian + delta(view, numbers)
    if "batch_size" in numbers:
        surprise = gradient.square().mul_(numbers["batch_size"]).sub_(hessian).div_(precision)
    elif product is not None:
        surprise = product.mul_(numbers["ess"]).sub_(hessian / precision)
    else:
        return None
    if "quadratic" in view:
        surprise.add_(view["quadratic"] / precision / size(numbers))
    return surprise


def _direction(view: Views, mean: Tensor, numbers: Numbers) -> Tensor:
    """(g / (1 − β₁ᵗ) + δ (m − m₀) + extra terms) / (h + δ)."""
    force = (view["momentum"] * numbers["debias"]).add_(pull(view, mean, numbers))
    return force.div_(view["hessian"] + delta(view, numbers))
