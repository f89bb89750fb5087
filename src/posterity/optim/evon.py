"""EVON: IVON in the eigenbasis that each weight matrix's gradients point out, so that its posterior is correlated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from posterity.errors import require_whole
from posterity.noise import normal
from posterity.optim._diagnostics import Diagnostics, quantiles, some
from posterity.optim._options import GaussianOptions, check_beta, check_betas, floats, number, option
from posterity.optim._per_sample import Paired
from posterity.optim._terms import pull
from posterity.optim.ivon import IVON
from posterity.optim.kernels import Numbers, Piece, Views, statistics
from posterity.posterior import Rotated
from posterity.trees import state_dtype

SIDES = ("left", "right")  # averages of G Gᵀ and Gᵀ G
BASES = ("left_basis", "right_basis")  # their eigenvectors U and V


@dataclass(frozen=True, kw_only=True)
class EVONOptions(GaussianOptions):
    """The options of a parameter group of EVON."""

    betas: tuple[float, float] = option(check_betas)
    basis_beta: float = option(partial(check_beta, index=2))
    refresh: int = option(partial(require_whole, "refresh"))


class EVON(Paired):
    """IVON in a rotated basis: each matrix M has the posterior M + U (ε/√(λ(h + δ))) Vᵀ, U and V orthogonal.

    In the basis, where Ĝ = UᵀGV and N̂ = Uᵀ(θ − M)V, the equations are IVON's, weight by weight:

        ĥ = λ (h + δ) N̂ Ĝ
        g ← β₁ g + (1 − β₁) Ĝ
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)
        M ← M − α U[ (g/(1 − β₁ᵗ) + δ UᵀMV) / (h + δ) ]Vᵀ

    and every `refresh` steps U and V become the eigenvectors of averages, with the prior's part of the gradient:

        L ← β₃ L + (1 − β₃)(G + δM)(G + δM)ᵀ,   R ← β₃ R + (1 − β₃)(G + δM)ᵀ(G + δM)

    h then becomes the diagonal of the old precision in the new basis. Without the prior's part, as published, the mean
    gradient −δM of a converged run tilts the basis. The noise of the weights alone makes E[GᵀG] = HΣH, which has the
    eigenvectors of H: in full batches the posterior of linear regression is exact. Minibatches add their own noise to
    the gradients, and their own tilt with it. Vectors are not rotated.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Learning rate; α = lr · (hess_init + δ), so that the first steps are those of SGD.
        ess: Effective sample size λ: the number of training examples, or more for a colder posterior.
        hess_init: Initial value of h.
        betas: β₁ and β₂.
        basis_beta: β₃.
        refresh: Steps between eigendecompositions, which cost the cube of a side.
        weight_decay: δ; the prior is N(0, 1/(λδ)), the same in every basis.
        mc_samples: Samples for each `step(closure)`.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
        >>> optimizer = EVON([weight], lr=0.1, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Vyas et al., "SOAP: Improving and stabilizing Shampoo using Adam", 2024. The variational form: arXiv 2606.23357.
    """

    options = EVONOptions
    widths = ("hessian", *BASES)
    written = ()
    given = ()  # only a prior with one precision is diagonal in every basis
    faster = "a smaller second beta"
    shards = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        hess_init: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.9999),
        basis_beta: float = 0.995,
        refresh: int = 10,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = EVONOptions(
            lr=lr,
            ess=ess,
            hess_init=hess_init,
            betas=betas,
            basis_beta=basis_beta,
            refresh=refresh,
            weight_decay=weight_decay,
            seed=seed,
        )
        super().__init__(params, options, mc_samples=mc_samples, torch_options=torch_options)

    def initial_state(self, p: Tensor, options: EVONOptions) -> Views:
        zeros = torch.zeros_like(_matrix(p), dtype=state_dtype(p.dtype), requires_grad=False).view(p.shape)
        state = {"momentum": zeros, "hessian": torch.full_like(zeros, options.hess_init)}
        for axis, (side, basis) in enumerate(zip(SIDES, BASES, strict=True) if p.ndim > 1 and p.numel() else ()):
            state[basis] = torch.eye(_matrix(p).shape[axis], dtype=zeros.dtype, device=zeros.device)
            state[side] = torch.zeros_like(state[basis])
        return {**state, "forgetting": zeros.new_zeros(())}

    def numbers(self, p: Tensor, options: EVONOptions) -> Numbers:
        beta1, beta2 = options.betas
        scale, steps = options.hess_init + options.weight_decay, max(self._steps(p), 1)
        numbers = {"lr": number(options.lr) * scale, "rho1": 1 - beta1, "rho2": 1 - beta2}
        numbers |= {"debias": 1 / (1 - beta1**steps), "rho3": max(1 - options.basis_beta, 1 / steps)}
        return numbers | floats(options, "ess", "hess_init", "weight_decay")

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        """The precisions in the basis."""
        return IVON.precision({"hessian": view["hessian"]} if "hessian" in view else {}, numbers)

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    def perturb(self, pieces: list[Piece], overwritten: list[Piece]) -> None:
        for piece in pieces:
            p, dtype = piece.tensors["p"], state_dtype(piece.tensors["p"].dtype)
            noise = normal(piece.key, piece.size, device=p.device, dtype=dtype).view(p.shape)
            step = _out(noise / self.precision(piece.tensors, piece.numbers) ** 0.5, piece.tensors)
            piece.tensors["buffer"].copy_(p)
            overwritten.append(piece)
            p.copy_(p.to(dtype) + step)

    def remember(self, noise: dict[Tensor, Tensor], gradients: dict[Tensor, Tensor]) -> None:
        for p, g in gradients.items():
            state, dtype = self.state.get(p, {}), state_dtype(p.dtype)
            product = _in(noise[p].to(dtype), state) * _in(g.to(dtype), state)
            earlier = self._products.get(p, (torch.zeros_like(product), torch.zeros_like(product)))
            self._products[p] = (earlier[0] + product, earlier[1] + g)

    def forget_pairs(self) -> None:
        self._products: dict[Tensor, tuple[Tensor, Tensor]] = {}  # Σ N̂Ĝ in the basis, and Σ G

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, p: Tensor, tensors: Views, options: EVONOptions, numbers: Numbers) -> None:
        tensors |= {name: self.state[p][name] for name in (*SIDES, *BASES) if name in self.state[p]}
        numbers["refresh"] = self._steps(p) % options.refresh == 0
        if p in self._products:
            tensors["turned"], tensors["total"] = self._products[p]
        if self._samples.statistics.finished:
            self.forget(p, numbers["rho2"])

    def apply(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            view, numbers = piece.tensors, piece.numbers
            mean = view["p"].to(state_dtype(view["p"].dtype))
            gradient, product = statistics(view, mean, numbers)
            if product is not None:
                product = self._product(piece, gradient)
            before = _in(mean, view)
            after, force = before.clone(), gradient + pull({}, mean, numbers)
            self.update(view, after, _in(gradient, view), product, numbers)
            view["p"].copy_(mean + _out(after - before, view))
            _learn_basis(view, force, numbers)
        self.forget_pairs()

    def _product(self, piece: Piece, gradient: Tensor) -> Tensor:
        """Σ N̂Ĝ over samples, scaled as Σ G has been scaled to the gradient of the step."""
        view = piece.tensors
        if "turned" not in view:  # an attached model
            return _in(self.lone_noise(piece).to(gradient), view) * _in(gradient, view)
        total = view["total"].norm()
        return view["turned"] * torch.where(total > 0, gradient.norm() / total, 1.0)

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        IVON.update({name: view[name] for name in ("momentum", "hessian")}, mean, gradient, product, numbers)

    # ── what it hands over ───────────────────────────────────────────────────────────────────────────────────────

    def structure(self, names: Mapping[str, Tensor]) -> Rotated:
        groups = {p: group for group, p in self._parameters}
        bases, precision = {}, {}
        for name, p in names.items():
            state = self.state.get(p) or self.initial_state(p, self.options_of(groups[p]))
            found = self.precision(state, self.numbers(p, self.options_of(groups[p])))
            assert isinstance(found, Tensor)
            precision[name] = found
            if BASES[0] in state:
                precision[name] = _matrix(found)
                bases[name] = tuple(state[basis] for basis in BASES)
        return Rotated(dict(names), bases, precision)

    @torch.no_grad()
    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """As for every variational optimizer; widths are those of weights, not of directions in the basis."""
        names = {str(i): p for i, (_, p) in enumerate(self._parameters) if p.requires_grad}
        found, variance = super().diagnostics(loss), self.structure(names).variance
        sigma = [some(v, found.parameters).sqrt().cpu() for v in variance.values()]
        sizes = [some(p, found.parameters).abs().cpu() for p in names.values()]
        ratios = [m / s for m, s in zip(sizes, sigma, strict=True)]
        return replace(found, sigma=quantiles(sigma), signal_to_noise=quantiles(ratios))


def _learn_basis(view: Views, force: Tensor, numbers: Numbers) -> None:
    """Add a gradient to the averages and, when it is time, take their eigenvectors for the basis."""
    if "left" not in view:
        return
    g = _matrix(force)
    with _full_precision(force):
        view["left"].lerp_(g @ g.mT, numbers["rho3"])
        view["right"].lerp_(g.mT @ g, numbers["rho3"])
        if not numbers["refresh"]:
            return
        turns = []
        for side, basis in zip(SIDES, BASES, strict=True):
            new = torch.linalg.eigh(view[side]).eigenvectors
            turns.append(view[basis].mT @ new)
            view[basis].copy_(new)
    t, s = turns
    view["momentum"].copy_(_turned(t.mT, view["momentum"], s))
    view["hessian"].copy_(_turned(t.square().mT, view["hessian"], s.square()))


def _matrix(t: Tensor) -> Tensor:
    """A weight (out, in, ...) as a matrix (out, in·...); vectors and numbers as vectors."""
    return t.flatten(1) if t.ndim > 1 else t.reshape(-1)


def _in(t: Tensor, view: Mapping[str, Tensor]) -> Tensor:
    """UᵀtV, shaped as t."""
    return _turned(view["left_basis"].mT, t, view["right_basis"]) if "left_basis" in view else t


def _out(t: Tensor, view: Mapping[str, Tensor]) -> Tensor:
    """UtVᵀ, shaped as t."""
    return _turned(view["left_basis"], t, view["right_basis"].mT) if "left_basis" in view else t


def _turned(left: Tensor, t: Tensor, right: Tensor) -> Tensor:
    with _full_precision(t):
        return (left @ _matrix(t) @ right).view(t.shape)


def _full_precision(t: Tensor) -> torch.autocast:
    """Samples may be drawn, and steps taken, where autocast is on for the network."""
    return torch.autocast(t.device.type, enabled=False)
