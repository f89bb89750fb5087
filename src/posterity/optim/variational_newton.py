"""The improved rule with a full covariance: variational Newton for models of up to a few thousand weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import expected, require
from posterity.linalg import cholesky, inverse_psd, retract, solve_psd, symmetrise
from posterity.noise import normal
from posterity.optim._diagnostics import Diagnostics
from posterity.optim._forms import check_form, check_tensor
from posterity.optim._options import GaussianOptions, check_beta, floats, in_range, number, option
from posterity.optim._per_sample import Paired
from posterity.optim._terms import delta, pull
from posterity.optim.engine import Group, VariationalOptimizer
from posterity.optim.kernels import Numbers, Piece, Views, statistics
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import state_dtype

LIMIT = 5000  # weights; a step factorises a matrix of this size


@dataclass(frozen=True, kw_only=True)
class VariationalNewtonOptions(GaussianOptions):
    """The options of a parameter group of VariationalNewton."""

    rho: float = in_range("rho", "a number in (0, 1]")
    momentum: float = option(check_beta)  # β₁, under the name that schedulers look for


class VariationalNewton(Paired):
    """Natural-gradient steps for N(m, P⁻¹) with a dense precision P, on the total loss ℓ = λ · mean loss − log prior.

        θ = m + L⁻ᵀε,  P = LLᵀ,   Ĥ = λ sym(P(θ − m) ĝᵀ) + S₀
        m ← m − α P⁻¹ λ (g/(1 − β₁ᵗ) + δ m),  with the old P and the average g of gradients ĝ
        P ← P + ρG + ½ρ² G P⁻¹ G,   G = Ĥ − P

    P stays positive definite for any ρ and Ĥ. The state of each weight is its row of P. All parameters share one P,
    so they are given together: groups may differ in their learning rate.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: α; 1 is a full Newton step.
        ess: Effective sample size λ: the number of training examples, or more for a colder posterior.
        rho: ρ, how fast the precision moves.
        hess_init: The precision starts at λ · hess_init · I + S₀.
        beta1: β₁.
        weight_decay: δ; the prior is N(0, 1/(λδ)), and S₀ = λδ I.
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        seed: Seed of the noise.
        **torch_options: As for every optimizer here: `foreach` has no effect, `maximize` and others are refused.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = VariationalNewton([weight], lr=0.1, ess=100)
        >>> with optimizer.sampled_params(train=True):
        ...     ((weight - 1) ** 2).sum().backward()
        >>> optimizer.step()

    References:
        Lin, Schmidt and Khan, "Handling the positive-definite constraint in the Bayesian learning rule", 2020.
    """

    options = VariationalNewtonOptions
    widths = ()
    written = ()
    given = (*VariationalOptimizer.given, "linear", "quadratic")
    faster = "a larger rho"
    beside = ("precision", "marginal")
    shards = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        ess: float,
        rho: float = 0.01,
        hess_init: float = 1.0,
        beta1: float = 0.9,
        weight_decay: float = 1e-4,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        seed: int = 0,
        **torch_options: Any,
    ) -> None:
        options = VariationalNewtonOptions(
            lr=lr, ess=ess, rho=rho, hess_init=hess_init, momentum=beta1, weight_decay=weight_decay, seed=seed
        )
        super().__init__(params, options, mc_samples=mc_samples, prior=prior, torch_options=torch_options)

    def add_param_group(self, param_group: Group) -> None:
        if "beta1" in param_group:
            param_group["momentum"] = param_group.pop("beta1")
        group = {**self.defaults, **param_group}
        for name in ("ess", "rho"):
            same = all(other[name] == group[name] for other in self.param_groups)
            require(same, name, "the same for all parameter groups, which share one precision", group[name])
        begun = any("step" in state for state in self.state.values())
        require(not begun, "add_param_group", "all parameters before the first step", "a group after it")
        super().add_param_group(param_group)
        size = sum(p.numel() for p in self._trained())
        if size > LIMIT:
            self.param_groups.pop()
            raise expected("params", f"at most {LIMIT} weights for a dense precision", size)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; those of earlier versions have `beta1` for `momentum`."""
        check_form(state_dict)
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group in groups:
            if "beta1" in group:
                group["momentum"] = group.pop("beta1")
        states = [state_dict["state"].get(key, {}) for group in groups for key in group["params"]]
        trained = [(p, state) for (_, p), state in zip(self._parameters, states, strict=False) if "forgetting" in state]
        for p, state in trained:
            block = state.get("precision")
            check_tensor("precision", block, p, (*p.shape, *block.shape[-1:]) if isinstance(block, Tensor) else None)
            check_tensor("marginal", state.get("marginal"), p, p.shape)
        blocks = [state["precision"] for _, state in trained]
        rows = [block.reshape(-1, block.shape[-1]) for block in blocks]
        if rows and {row.shape[1] for row in rows} == {sum(map(len, rows))}:
            cholesky(torch.cat(rows).double(), "state dict, precision")
        super().load_state_dict({**state_dict, "param_groups": groups})

    # ── one vector of all weights, one matrix ────────────────────────────────────────────────────────────────────

    def _matrix(self) -> Tensor:
        """P, in float64; before the first step λ · hess_init · I + S₀."""
        trained = [(group, p) for group, p in self._parameters if p.requires_grad]
        if not any("precision" in state for state in self.state.values()):
            return torch.diag(_flat([torch.zeros_like(p) + self._initial(p, group) for group, p in trained]))
        size = sum(p.numel() for _, p in trained)
        rows = [self.state.get(p, {}).get("precision") for _, p in trained]
        known = all(row is not None and row.shape[-1] == size for row in rows)
        require(known, "params", "the same ones to train as at the first step", "some frozen or thawed since")
        return torch.cat([row.reshape(-1, size).double() for row in rows])

    def _initial(self, p: Tensor, group: Group) -> Tensor | float:
        return self.precision(self._parameters.tensors(p), self.numbers(p, self.options_of(group)))

    def initial_state(self, p: Tensor, options: VariationalNewtonOptions) -> Views:
        return {"momentum": torch.zeros_like(p, dtype=state_dtype(p.dtype)), "forgetting": p.new_zeros(())}

    def numbers(self, p: Tensor, options: VariationalNewtonOptions) -> Numbers:
        debias = 1 / (1 - options.momentum ** max(self._steps(p), 1))
        numbers = {"lr": number(options.lr), "rho1": 1 - options.momentum, "debias": debias}
        return numbers | floats(options, "ess", "rho", "hess_init", "weight_decay")

    @staticmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        """The inverse of each weight's marginal variance."""
        return view.get("marginal", (delta(view, numbers) + numbers["hess_init"]) * numbers["ess"])

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    def perturb(self, pieces: list[Piece], overwritten: list[Piece]) -> None:
        if not pieces:
            return
        noise = torch.cat([normal(q.key, q.size, device=q.tensors["p"].device, dtype=torch.float64) for q in pieces])
        factor = cholesky(self._matrix(), "precision")
        steps = torch.linalg.solve_triangular(factor.mT, noise[:, None], upper=True).squeeze(-1)
        for piece, step in zip(pieces, steps.split([piece.size for piece in pieces]), strict=True):
            p = piece.tensors["p"]
            piece.tensors["buffer"].copy_(p)
            overwritten.append(piece)
            p.copy_(p.double() + step.view(p.shape))

    def remember(self, noise: dict[Tensor, Tensor], gradients: dict[Tensor, Tensor]) -> None:
        own = _flat([gradients.get(p, torch.zeros_like(p)) for p in noise])
        self._pairs.append((_flat(list(noise.values())), own))

    def forget_pairs(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _has_gradient(self, p: Tensor) -> bool:
        """All weights move together: one that the loss does not reach has a gradient of zero."""
        return any(q.grad is not None for q in self._trained())

    @staticmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        """Turn the gradient into λ (g/(1 − β₁ᵗ) + δ m), which `apply` preconditions."""
        view["momentum"].lerp_(gradient, numbers["rho1"])
        gradient.copy_((view["momentum"] * numbers["debias"]).add_(pull(view, mean, numbers)).mul_(numbers["ess"]))

    def apply(self, pieces: list[Piece]) -> None:
        if not pieces:
            return
        matrix, gradients, forces, curvatures = self._matrix(), [], [], []
        for view, numbers in ((piece.tensors, piece.numbers) for piece in pieces):
            mean = view["p"].to(view["momentum"].dtype)
            gradients.append(statistics(view, mean, numbers)[0])
            forces.append(gradients[-1].clone())
            self.update(view, mean, forces[-1], None, numbers)
            own = delta(view, numbers) * numbers["ess"] + view.get("quadratic", 0.0)
            curvatures.append(torch.zeros_like(mean) + own)
        step = solve_psd(cholesky(matrix, "precision"), _flat(forces))
        outer = self._noise_and_gradient(pieces, _flat(gradients))
        if outer is not None:
            hessian = symmetrise(matrix @ outer) * self.param_groups[0]["ess"]
            matrix = retract(matrix, hessian + torch.diag(_flat(curvatures)) - matrix, self.param_groups[0]["rho"])
        self._write_step(step, matrix, outer is not None)
        self.forget_pairs()

    def _noise_and_gradient(self, pieces: list[Piece], gradient: Tensor) -> Tensor | None:
        """Σₖ nₖ ĝₖᵀ over samples, scaled as Σₖ ĝₖ has been scaled to the gradient of the step."""
        if not self._samples.statistics.finished:
            return None
        if not self._pairs:  # an attached model
            return torch.outer(_flat([self.lone_noise(piece) for piece in pieces]), gradient)
        noises, gradients = (torch.stack(column) for column in zip(*self._pairs, strict=True))
        total = gradients.sum(0).norm()
        return noises.mT @ gradients * torch.where(total > 0, gradient.norm() / total, 1.0)

    def _write_step(self, step: Tensor, matrix: Tensor, moved: bool) -> None:
        marginal = inverse_psd(matrix, "precision").diagonal().reciprocal()
        start = 0
        for group, p in self._parameters:
            if not p.requires_grad:
                continue
            mine = slice(start, start := start + p.numel())
            p.copy_(p.double() - (step[mine] * number(group["lr"])).view(p.shape))
            state, dtype = self.state_of(p, group), state_dtype(p.dtype)
            state["precision"] = matrix[mine].reshape(*p.shape, len(matrix)).to(dtype)
            state["marginal"] = marginal[mine].view(p.shape).to(dtype)
            if moved:
                self.forget(p, group["rho"])

    # ── what it hands over ───────────────────────────────────────────────────────────────────────────────────────

    def structure(self, names: Mapping[str, Tensor]) -> Full:
        trained = self._trained()
        starts = dict(zip(trained, torch.tensor([0, *(p.numel() for p in trained)]).cumsum(0).tolist(), strict=False))
        order = torch.cat([torch.arange(starts[p], starts[p] + p.numel()) for p in names.values()])
        return Full(dict(names), self._matrix().cpu()[order][:, order].to(trained[0].device))

    @torch.no_grad()
    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        found = super().diagnostics(loss)
        parameters = {str(i): (group, p) for i, (group, p) in enumerate(self._parameters) if p.requires_grad}
        priors = {name: self._parameters.prior_of(p, group) for name, (group, p) in parameters.items()}
        prior = Diagonal({name: m for name, (m, _) in priors.items()}, {name: s for name, (_, s) in priors.items()})
        kl = float(self.structure({name: p for name, (_, p) in parameters.items()}).kl(prior))
        return replace(found, kl=kl, elbo=None if loss is None else -float(self.param_groups[0]["ess"]) * loss - kl)


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1).double() for t in tensors])
