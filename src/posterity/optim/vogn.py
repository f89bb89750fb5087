"""VOGN and OGN: online Gauss-Newton from the squared gradients of single examples, with and without samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from posterity.batches import Batch
from posterity.curvature import gradient_moments
from posterity.inputs import Inputs
from posterity.likelihoods import Likelihood
from posterity.optim._options import GaussianOptions, check_betas, floats, in_range, number, option
from posterity.optim._terms import delta, pull
from posterity.optim.engine import Group, VariationalOptimizer
from posterity.optim.kernels import Numbers, Piece, Views
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype, trainable


@dataclass(frozen=True, kw_only=True)
class VOGNOptions(GaussianOptions):
    """The options of a parameter group of VOGN and OGN."""

    betas: tuple[float, float] = option(check_betas)
    damping: float = in_range("damping", "a number >= 0")


class VOGN(VariationalOptimizer):
    """Variational online Gauss-Newton: N(m, 1/(λ(h + δ))), with h an average over squared gradients of single examples.

        h ← β₂ h + (1 − β₂) (1/B) Σᵢ gᵢ²,   gᵢ the gradient of example i at θ = m + ε/√(λ(h + δ))
        g ← β₁ g + (1 − β₁) (1/B) Σᵢ gᵢ
        m ← m − α (g/(1 − β₁ᵗ) + δ m) / (h + δ + γ)

    Squared gradients are positive for any noise, but they are not the Hessian: this is the empirical Gauss-Newton
    matrix, whose fixed point is not the mean-field optimum that IVON and SOBA find. Gradients come from `backward`,
    which takes the place of `loss.backward()`; after a plain backward pass h is not updated.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α.
        ess: Effective sample size λ: the number of training examples divided by the temperature.
        hess_init: Initial value of h.
        betas: β₁ and β₂.
        weight_decay: δ; the prior is N(0, 1/(λδ)).
        damping: γ, added to the curvature of the step but not to the precision of the posterior.
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> model = nn.Linear(2, 3)
        >>> optimizer = VOGN(model.parameters(), lr=0.1, ess=8)
        >>> with optimizer.sampled_params(train=True):
        ...     optimizer.backward(model, torch.randn(8, 2), torch.arange(8) % 3, "categorical")
        >>> optimizer.step()

    References:
        Khan et al., "Fast and scalable Bayesian deep learning by weight-perturbation in Adam", 2018.
        Osawa et al., "Practical deep learning with Bayesian principles", 2019.
    """

    options = VOGNOptions
    widths = ("hessian", "prior_precision")
    written = ("momentum", "hessian")
    faster = "a smaller second beta"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        hess_init: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-4,
        damping: float = 0.0,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = VOGNOptions(
            lr=lr, ess=ess, hess_init=hess_init, betas=betas, weight_decay=weight_decay, damping=damping, seed=seed
        )
        super().__init__(params, options, mc_samples=mc_samples, prior=prior, torch_options=torch_options)

    def _forget_transients(self) -> None:
        super()._forget_transients()
        self._discard_squares()

    def backward(self, model: nn.Module, inputs: Inputs, targets: Tensor, likelihood: str | Likelihood) -> None:
        """Add the gradient of the mean loss to `.grad`, and keep the mean of the examples' squared gradients.

        Closed forms for linear, convolutional, embedding and normalisation layers, torch.func for others. The model is
        in evaluation mode meanwhile: dropout is off, and batch norm uses its running statistics.

        Args:
            model: The model.
            inputs: Inputs of a batch.
            targets: Their targets.
            likelihood: What the outputs mean.
        """
        if self._replicas.count > 1:
            self._warn("gradients of single examples are not averaged over processes: replicas would drift apart")
        n, mine = len(targets), {p for _, p in self._parameters}
        sums, squares = gradient_moments(model, [Batch(inputs, targets, torch.arange(n))], likelihood)
        for name, p in trainable(model).items():
            if p in mine:
                gradient, square = (sums[name] / n).to(p.dtype), squares[name] / n
                p.grad = gradient if p.grad is None else p.grad.add_(gradient)
                self._squares[p] = self._squares[p] + square if p in self._squares else square
        self._batches += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        if not self._samples.context_open:
            self._discard_squares()

    def _discard_squares(self) -> None:
        self._squares: dict[Tensor, Tensor] = {}  # of each parameter, since the last step
        self._batches = 0  # that the squares are summed over

    def initial_state(self, p: Tensor, options: VOGNOptions) -> Views:
        momentum = torch.zeros_like(p, dtype=state_dtype(p.dtype), requires_grad=False)
        hessian = torch.full_like(momentum, options.hess_init)
        return {"momentum": momentum, "hessian": hessian, "forgetting": momentum.new_zeros(())}

    def numbers(self, p: Tensor, options: VOGNOptions) -> Numbers:
        beta1, beta2 = options.betas
        return {
            "lr": number(options.lr),
            **floats(options, "ess", "hess_init", "weight_decay", "damping"),
            "rho1": 1 - beta1,
            "rho2": 1 - beta2,
            "debias": 1 / (1 - beta1 ** max(self._steps(p), 1)),
        }

    def observe(self, p: Tensor, tensors: Views, options: VOGNOptions, numbers: Numbers) -> None:
        if p in self._squares:
            tensors["squares"] = self._squares[p]
            numbers["batches"] = float(self._batches)
            self.forget(p, numbers["rho2"])

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        return (view.get("hessian", numbers["hess_init"]) + delta(view, numbers)) * numbers["ess"]

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        view["momentum"].lerp_(gradient, numbers["rho1"])
        if "squares" in view:
            view["hessian"].lerp_(view["squares"] / numbers["batches"], numbers["rho2"])
        force = (view["momentum"] * numbers["debias"]).add_(pull(view, mean, numbers))
        mean.sub_(force.div_(view["hessian"] + delta(view, numbers) + numbers["damping"]).mul_(numbers["lr"]))

    def apply(self, pieces: list[Piece]) -> None:
        super().apply(pieces)
        if pieces and not self._squares:
            self._warn("no squared gradients of single examples, so h does not move: call `optimizer.backward`")
        self._discard_squares()

    def _skip(self) -> None:
        super()._skip()
        self._discard_squares()

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        """The squares move h with and without noise, and their absence warns elsewhere."""


class OGN(VOGN):
    """Online Gauss-Newton: VOGN with all gradients at the mean, where `sampled_params(train=True)` leaves it.

        h ← β₂ h + (1 − β₂) (1/B) Σᵢ gᵢ²,   gᵢ the gradient of example i at m
        m ← m − α (g/(1 − β₁ᵗ) + δ m) / (h + δ + γ)

    The posterior is that of a Laplace approximation which is kept up to date while training.

    Examples:
        >>> model = nn.Linear(2, 3)
        >>> optimizer = OGN(model.parameters(), lr=0.1, ess=8)
        >>> optimizer.backward(model, torch.randn(8, 2), torch.arange(8) % 3, "categorical")
        >>> optimizer.step()

    References:
        Khan and Rue, "The Bayesian learning rule", 2023.
    """

    def _put_sample(self, train: bool) -> None:
        if not train:
            super()._put_sample(train)
