"""Binary weights: BayesBiNN, a Bernoulli posterior on the sign of each weight, and STE, its point estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import InvalidInput, Undefined, expected
from posterity.likelihoods import Likelihood
from posterity.noise import normal
from posterity.optim._diagnostics import Diagnostics
from posterity.optim._options import (
    LR,
    Options,
    check_beta,
    check_betas,
    check_eps,
    check_seed,
    floats,
    in_range,
    number,
    option,
)
from posterity.optim._per_sample import Received
from posterity.optim._points import Point
from posterity.optim.engine import Attachment, Group, trained_names
from posterity.optim.kernels import Numbers, Piece, Views
from posterity.posterior import Diagonal, Posterior, Signs, Structure
from posterity.trees import state_dtype

TINY = 1e-10  # at temperatures below it the slope is 1/(1 − μ² + TINY) for every sample: the published algorithm


@dataclass(frozen=True, kw_only=True)
class BayesBiNNOptions(Options):
    """The options of a parameter group of BayesBiNN."""

    lr: float | Tensor = field(metadata=LR)
    ess: float = in_range("ess", "a positive finite number")
    temperature: float = in_range("temperature", "a positive finite number")
    natural_init: float = in_range("natural_init", "a positive finite number")
    beta: float = option(check_beta)
    seed: int = option(check_seed)


class BayesBiNN(Received):
    """The rule for random signs: P(w = 1) = σ(2λ), with the Gumbel relaxation for the gradient.

        w = tanh((λ + δ)/T),  δ = ½ log u/(1 − u),  u uniform
        ĝ = s ∇ℓ(w),   s = (1 − w² + 10⁻¹⁰) / (T (1 − μ² + 10⁻¹⁰)),   μ = tanh λ
        g ← β g + (1 − β)(N ĝ + λ − λ₀),   λ ← λ − α g/(1 − βᵗ)

    The parameters are the means μ outside sampling contexts, signs (or nearly) inside; after a training context `.grad`
    is ĝ, the gradient in μ. All weights given are binary: use layers without biases and without affine normalisation,
    or give the rest to another optimizer.

    Args:
        params: Parameters, named parameters or parameter groups. They become tanh(±natural_init), with their signs.
        lr: α.
        ess: N, the number of training examples, or more for a colder posterior.
        temperature: T of the relaxation; at the published 10⁻¹⁰ samples are exact signs.
        natural_init: |λ| at the start.
        beta: β.
        mc_samples: Samples for each `step(closure)`.
        prior: Signs (or a posterior of that structure) with λ₀; fair coins by default. Needs named parameters.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
        >>> optimizer = BayesBiNN([weight], lr=1e-4, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Meng, Bachmann and Khan, "Training binary neural networks using the Bayesian learning rule", 2020.
    """

    options = BayesBiNNOptions
    widths = ("natural",)
    written = ("momentum", "natural")
    given = ("prior_natural",)
    shards = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        temperature: float = 1e-10,
        natural_init: float = 10.0,
        beta: float = 0.99,
        mc_samples: int = 1,
        prior: Signs | Posterior | None = None,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = BayesBiNNOptions(
            lr=lr, ess=ess, temperature=temperature, natural_init=natural_init, beta=beta, seed=seed
        )
        super().__init__(params, options, mc_samples=mc_samples, torch_options=torch_options)
        if prior is not None:
            self.set_prior(prior)

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _require_wide(group["params"])
        except InvalidInput:
            self.param_groups.pop()
            raise
        _write_signs(group["params"], math.tanh(group["natural_init"]))

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict, and write the means that follow from it: the weights were made signs before."""
        super().load_state_dict(state_dict)
        for _, p in self._parameters:
            if "natural" in self.state.get(p, {}):
                p.copy_(self.state[p]["natural"].tanh())

    def set_prior(self, prior: Signs | Posterior) -> None:  # type: ignore[override]
        """Take yesterday's signs as today's prior."""
        structure = prior.structure if isinstance(prior, Posterior) else prior
        if not isinstance(structure, Signs):
            raise expected("prior", "Signs, or a Posterior of that structure", type(structure).__name__)
        self._write(prior_natural=structure.natural)

    def initial_state(self, p: Tensor, options: BayesBiNNOptions) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        return {"momentum": momentum, "natural": _natural(self._parameters.tensors(p), p, self.numbers(p, options))}

    def numbers(self, p: Tensor, options: BayesBiNNOptions) -> Numbers:
        return {
            "lr": number(options.lr) / (1 - options.beta ** max(self._steps(p), 1)),
            "rho": 1 - options.beta,
            **floats(options, "ess", "temperature", "natural_init"),
        }

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        """1/(1 − μ²), the inverse variance of a sign."""
        return view["natural"].cosh().square() if "natural" in view else math.cosh(numbers["natural_init"]) ** 2

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    def perturb(self, pieces: list[Piece], overwritten: list[Piece]) -> None:
        for piece in pieces:
            p = piece.tensors["p"]
            natural = _natural(piece.tensors, p, piece.numbers)
            z = normal(piece.key, piece.size, device=p.device, dtype=natural.dtype).view(p.shape)
            shifted = natural + 0.5 * (torch.special.log_ndtr(z) - torch.special.log_ndtr(-z))
            piece.tensors["buffer"].copy_(p)
            overwritten.append(piece)
            p.copy_(torch.tanh(shifted / piece.numbers["temperature"]) if self._samples.train else _sign(shifted))

    def received(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """ĝ, the gradients in the means."""
        _require_wide(gradients)  # again: models are converted after their optimizers were made
        return {p: g * self._slope(p).to(g) for p, g in gradients.items()}

    @torch.no_grad()
    def _slope(self, p: Tensor) -> Tensor:
        """∂w/∂μ at the sample in place."""
        numbers = self.numbers(p, self.options_of(self._parameters.group_of(p)))
        mean = self._samples.means[p]
        natural = _natural(self._parameters.tensors(p), mean, numbers)
        certain = 1 / natural.cosh().square()  # 1 − μ², which does not cancel
        return (1 - p.detach().to(natural).square() + TINY) / (numbers["temperature"] * (certain + TINY))

    def attach(self, model: nn.Module, *, ahead: bool = False) -> Attachment:
        """Not possible: the gradient has to be turned into that of the mean after each backward pass."""
        raise InvalidInput("attach: expected a Gaussian posterior, got BayesBiNN; use sampled_params(train=True)")

    # ── steps and what they lead to ──────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        natural = view["natural"]
        force = gradient * numbers["ess"] + natural - view.get("prior_natural", 0.0)
        view["momentum"].lerp_(force, numbers["rho"])
        natural.sub_(view["momentum"] * numbers["lr"])
        mean.copy_(natural.tanh())

    def structure(self, names: Mapping[str, Tensor]) -> Structure:
        groups = {p: group for group, p in self._parameters}
        numbers = {p: self.numbers(p, self.options_of(groups[p])) for p in names.values()}
        return Signs({n: _natural(self._parameters.tensors(p), p, numbers[p]) for n, p in names.items()})

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Return the signs; their prior is represented by a Gaussian with the moments of fair coins."""
        self._put_mean()
        names = trained_names(self._parameters, model)
        prior = Diagonal.isotropic({name: torch.zeros_like(p) for name, p in names.items()}, 1.0)
        ess = float(self.param_groups[0]["ess"])
        return Posterior.of(model, self.structure(names), prior=prior, n=n, ess=ess, likelihood=likelihood)

    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """Not defined for signs, which are no Gaussian; the posterior has their entropy and KL."""
        raise Undefined("diagnostics: not defined for signs; `posterior(...).structure` has entropy and kl")


@dataclass(frozen=True, kw_only=True)
class STEOptions(Options):
    """The options of a parameter group of STE."""

    lr: float | Tensor = field(metadata=LR)
    betas: tuple[float, float] = option(check_betas)
    eps: float = option(check_eps)
    latent_init: float = in_range("latent_init", "a number in (0, 1]")


class STE(Point):
    """The straight-through estimator: Adam on latent weights v, with the gradient at their signs.

        g ← β₁ g + (1 − β₁) ∇ℓ(sign v),   s ← β₂ s + (1 − β₂) ∇ℓ(sign v)²
        v ← clip( v − α ĝ/(√ŝ + ε), −1, 1 ),   ĝ = g/(1 − β₁ᵗ),  ŝ = s/(1 − β₂ᵗ)

    The parameters are the signs themselves; the latent weights are state.

    Args:
        params: Parameters, named parameters or parameter groups. They become signs.
        lr: α.
        betas: β₁ and β₂.
        eps: ε.
        latent_init: |v| at the start.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
        >>> optimizer = STE([weight], lr=0.1)
        >>> weight.data
        tensor([ 1., -1.])

    References:
        Hubara et al., "Binarized neural networks", 2016.
    """

    options = STEOptions
    written = ("momentum", "scale", "latent")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        latent_init: float = 0.01,
        **torch_options: Any,
    ) -> None:
        super().__init__(
            params, STEOptions(lr=lr, betas=betas, eps=eps, latent_init=latent_init), torch_options=torch_options
        )

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        _write_signs(self.param_groups[-1]["params"], 1.0)

    def initial_state(self, p: Tensor, options: STEOptions) -> Views:
        zeros = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        latent = p.detach().to(zeros.dtype) * options.latent_init
        return {"momentum": zeros, "scale": zeros.clone(), "latent": latent}

    def numbers(self, p: Tensor, options: STEOptions) -> Numbers:
        (beta1, beta2), t = options.betas, max(self._steps(p), 1)
        rates = {"rho1": 1 - beta1, "rho2": 1 - beta2, "eps": options.eps}
        return {"lr": number(options.lr) / (1 - beta1**t), "debias": 1 / (1 - beta2**t), **rates}

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        view["momentum"].lerp_(gradient, numbers["rho1"])
        view["scale"].lerp_(gradient.square(), numbers["rho2"])
        scale = (view["scale"] * numbers["debias"]).sqrt_().add_(numbers["eps"])
        view["latent"].sub_(view["momentum"] / scale * numbers["lr"]).clamp_(-1.0, 1.0)
        mean.copy_(_sign(view["latent"]))

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        """A point needs no noise."""


def _natural(view: Mapping[str, Tensor], p: Tensor, numbers: Numbers) -> Tensor:
    """λ: the state, or its initial value, which has the sign of the parameter."""
    if "natural" in view:
        return view["natural"]
    return _sign(p.detach().to(state_dtype(p.dtype))) * numbers["natural_init"]


def _sign(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def _require_wide(parameters: Iterable[Tensor]) -> None:
    """Refuse float16, in which gradients divided by 1 − μ² overflow, so that every step would be skipped."""
    if any(p.dtype is torch.float16 for p in parameters):
        raise expected("params", "bfloat16 or wider ones for gradients divided by 1 − μ²", torch.float16)


@torch.no_grad()
def _write_signs(parameters: list[Tensor], size: float) -> None:
    for p in parameters:
        p.copy_(_sign(p) * size)
