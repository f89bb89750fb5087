"""The engine under every variational optimizer: samples in and out of place, statistics, skipped steps, state."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import InvalidInput, expected, require
from posterity.likelihoods import Likelihood
from posterity.noise import Key, normal
from posterity.optim._attach import Attachment
from posterity.optim._blocks import blocks, copy_blocks
from posterity.optim._checkpoint import keep_precision
from posterity.optim._samples import Samples, norm
from posterity.posterior import Diagonal, Posterior
from posterity.trees import state_dtype

Group = dict[str, Any]
Views = dict[str, Tensor]


class VariationalOptimizer(Optimizer):
    """A `torch.optim.Optimizer` whose parameters are the mean of a Gaussian posterior.

    A subclass holds its equations and nothing else: the initial state of a parameter (`_initial_state`), the posterior
    precision (`_precision`) and the update from the averaged gradient and the averaged product of noise and gradient
    (`_update`). Parameters equal the mean whenever no sample is in place.
    """

    def __init__(self, params: ParamsT, defaults: Group, *, mc_samples: int = 1, prior: Diagonal | Posterior | None):
        require(isinstance(mc_samples, int) and mc_samples >= 1, "mc_samples", "an integer >= 1", mc_samples)
        self.mc_samples = mc_samples
        self._forget_transients()
        super().__init__(params, {**defaults, "draws": 0, "skipped": 0})
        if not any(p.requires_grad for _, p in self._parameters()):
            raise InvalidInput("params: expected at least one parameter that requires a gradient, got only frozen ones")
        if prior is not None:
            self.set_prior(prior)

    def _forget_transients(self) -> None:
        self._samples = Samples()
        self._context_open = False
        self._sampling = True
        self._predictions = 0
        self._warned: set[str] = set()

    # ── the equations: what a subclass provides ──────────────────────────────────────────────────────────────────

    @abstractmethod
    def _initial_state(self, p: Tensor, group: Group) -> Views:
        """State of a parameter before its first update, besides `step`."""

    @abstractmethod
    def _precision(self, state: Mapping[str, Tensor], group: Group) -> Tensor:
        """Posterior precision of each weight of a block, from the state (empty before the first update)."""

    @abstractmethod
    def _update(
        self, mean: Tensor, gradient: Tensor, product: Tensor | None, state: Views, group: Group, step: int
    ) -> None:
        """Update mean and state of a block in place; the product of noise and gradient is None without noise."""

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
        """
        if self._context_open:
            raise InvalidInput("sampled_params: expected no sampling context to be open, got a nested one")
        self._put_mean()
        self._context_open = True
        try:
            self._put_sample(train)
            yield
        except BaseException:
            self._samples.discard()
            raise
        finally:
            self._samples.take_away()
            self._context_open = False

    def _put_sample(self, train: bool) -> None:
        samples = self._samples
        samples.train = train
        trainable = [(i, group, p) for i, (group, p) in enumerate(self._parameters()) if p.requires_grad]
        if samples.finished and all(p.grad is None for _, _, p in trainable):
            samples.discard()
        for group in self.param_groups:
            group["draws"] += train
        self._predictions += not train
        for index, group, p in trainable:
            step, sample = (group["draws"], 0) if train else (0, self._predictions - 1)
            key = Key(group["seed"], step, sample, index)
            samples.put(p, partial(self._perturb, p, group, key))

    def _perturb(self, p: Tensor, group: Group, key: Key, buffer: Tensor) -> None:
        """buffer ← m and p ← m + ε/√precision; whatever goes wrong, what was overwritten is put back."""
        start = 0
        try:
            for start, view in blocks({"p": p.detach(), "buffer": buffer, **self._tensors(p)}):
                mean = view["buffer"].copy_(view["p"])
                noise = normal(key, mean.numel(), start=start, device=p.device, dtype=state_dtype(p.dtype))
                deviation = self._precision(view, group).rsqrt()
                view["p"].copy_(noise.view_as(mean).mul_(deviation).add_(mean))
        except BaseException:
            copy_blocks(buffer, p.detach(), start)
            raise

    def _put_mean(self) -> None:
        if self._samples.means:
            self._samples.take_away()

    def attach(self, model: nn.Module) -> Attachment:
        """Make a model variational for any training code that only knows `forward`, `backward` and `step`.

        While the model trains with gradients on, each forward pass holds a fresh sample until its backward pass ends;
        at all other times the parameters are the mean.

        Returns:
            A handle; `remove()` detaches the model again.
        """
        return Attachment(self, model)

    def train(self) -> None:
        """Let an attached model be sampled (the state after construction)."""
        self._sampling = True

    def eval(self) -> None:
        """Put the mean in place and keep it there until `train`."""
        self._put_mean()
        self._sampling = False

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Inside a sampling context the ones so far are one estimate, to be averaged with more."""
        if self._context_open and self._samples.train:
            self._samples.close()
        else:
            self._samples.discard()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step from the gradients; with a closure, evaluate it at `mc_samples` fresh samples first.

        Without noise since the last step the gradient is taken as the gradient at the mean.

        Returns:
            The mean of the closure's losses, or None without a closure.
        """
        if self._context_open:
            raise InvalidInput("step: expected the sampling context to be closed, got a step inside it")
        self._put_mean()
        loss = None if closure is None else self._sampled_loss(closure)
        estimates = max(self._samples.closed + 1, self.mc_samples if closure is not None else 1)
        ready = [(group, p) for group, p in self._parameters() if p.requires_grad and self._has_gradient(p)]
        try:
            if self._finite([p for _, p in ready]):
                for group, p in ready:
                    self._step_one(p, group, estimates)
                self._say_if_noiseless(ready)
            else:
                self._skip()
        finally:
            self._samples.discard()
        return loss

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        if self.mc_samples > 1 and self._samples.finished:
            raise expected("step(closure)", "no samples pending when mc_samples > 1", self._samples.finished)
        total: Any = 0.0
        for _ in range(self.mc_samples):
            with self.sampled_params(train=True), torch.enable_grad():
                loss = closure()
            total = None if loss is None or total is None else total + loss / self.mc_samples
        return total

    def _step_one(self, p: Tensor, group: Group, estimates: int) -> None:
        state = self._state_of(p, group)
        state["step"] += 1
        step = int(state["step"].item())
        kept = self._samples.kept.get(p) if self._samples.finished else None
        tensors: Views = {"p": p.detach(), **self._tensors(p)}
        tensors |= {} if p.grad is None else {"gradient": p.grad}
        if kept is not None:
            tensors["sample"] = kept.buffer
            tensors |= {} if kept.product is None else {"product": kept.product}
            tensors |= {} if kept.gradients is None else {"gradients": kept.gradients}
        factor = 1.0 if kept is None else self._samples.factor(p)
        dtype = state_dtype(p.dtype)
        for _, view in blocks(tensors):
            mean = view["p"].to(dtype)
            gradient, product = _statistics(view, mean, factor, estimates)
            self._update(mean, gradient, product, view, group, step)
            if mean is not view["p"]:
                view["p"].copy_(mean)

    def _has_gradient(self, p: Tensor) -> bool:
        kept = self._samples.kept.get(p)
        return p.grad is not None or (kept is not None and kept.gradients is not None)

    def _finite(self, parameters: list[Tensor]) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        for g in gradients:
            if g.is_sparse:
                raise expected(
                    "gradient", "a dense tensor (this optimizer does not support sparse gradients)", g.layout
                )
        kept = [self._samples.kept[p].product for p in parameters if p in self._samples.kept]
        norms = [norm(t) for t in (*gradients, *(product for product in kept if product is not None))]
        if not norms:
            return True
        return bool(torch.stack([n.to(norms[0].device, torch.float64) for n in norms]).sum().isfinite())

    def _skip(self) -> None:
        for group in self.param_groups:
            group["skipped"] += 1
        self._warn("a step was skipped because its gradients were NaN or infinite; `diagnostics()` counts them")

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        if not self._samples.finished and any(group["lr"] != 0 for group, _ in ready):
            self._warn(
                "step() took the gradients as gradients at the mean, so the Hessian does not move: open "
                "`sampled_params(train=True)`, pass a closure to step(), or `attach` the model"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=4)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _parameters(self) -> Iterator[tuple[Group, Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    def _state_of(self, p: Tensor, group: Group) -> Views:
        state: Views = self.state[p]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state.update(self._initial_state(p, group))
        return state

    def _tensors(self, p: Tensor) -> Views:
        """The state that has one number for each weight."""
        return {name: t for name, t in self.state.get(p, {}).items() if t.shape == p.shape and name != "step"}

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        for p in param_group["params"]:
            if not p.is_floating_point():
                self.param_groups.pop()
                raise expected("params", "real floating-point parameters", p.dtype)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; one of other shapes is refused and changes nothing."""
        self._put_mean()
        self._samples.discard()
        with keep_precision(self):
            super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "mc_samples": self.mc_samples, "_samples": self._samples}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_context_open" not in self.__dict__:
            self._forget_transients()
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        for values in self.state.values():
            if "step" in values:
                values["step"] = torch.as_tensor(values["step"], dtype=torch.float32)

    # ── the prior and the posterior ──────────────────────────────────────────────────────────────────────────────

    def set_prior(self, prior: Diagonal | Posterior) -> None:
        """Take a diagonal Gaussian over the named parameters as the prior, in place of weight decay.

        Args:
            prior: A `Diagonal`, or a `Posterior` of that structure (yesterday's posterior is today's prior).
        """
        structure = prior.structure if isinstance(prior, Posterior) else prior
        if not isinstance(structure, Diagonal):
            raise expected("prior", "a Diagonal, or a Posterior of that structure", type(structure).__name__)
        for name, p in self._named().items():
            if name not in structure.mean:
                raise expected("prior", f"a tensor for parameter {name!r}", f"only {sorted(structure.mean)}")
            mean, precision = structure.mean[name], structure.precision[name]
            require(mean.shape == p.shape, f"prior of {name!r}", f"shape {tuple(p.shape)}", tuple(mean.shape))
            dtype = state_dtype(p.dtype)
            self.state[p]["prior_mean"] = mean.to(p.device, dtype, copy=True)
            self.state[p]["prior_precision"] = precision.to(p.device, dtype).expand(p.shape).clone()

    def _named(self) -> dict[str, Tensor]:
        names: dict[str, Tensor] = {}
        for group in self.param_groups:
            if "param_names" not in group:
                raise expected("params", "named parameters, as in model.named_parameters()", "unnamed ones")
            names.update(zip(group["param_names"], group["params"], strict=True))
        return names

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Hand over the posterior N(m, 1/precision) of a model.

        Args:
            model: The model whose parameters this optimizer trains.
            likelihood: What the model's outputs mean.
            n: Number of training examples.
        """
        self._put_mean()
        groups = {p: group for group, p in self._parameters() if p.requires_grad}
        names = {name: p for name, p in model.named_parameters() if p in groups}
        require(len(names) == len(groups), "model", f"the {len(groups)} trained parameters", f"{len(names)} of them")
        sizes = {float(group["ess"]) for group in groups.values()}
        require(len(sizes) == 1, "ess", "the same for all parameter groups", sorted(sizes))
        precision = {name: self._precision(self._tensors(p), groups[p]) for name, p in names.items()}
        prior = {name: self._prior(p, groups[p]) for name, p in names.items()}
        return Posterior.of(
            model,
            Diagonal(dict(names), precision),
            prior=Diagonal({k: v[0] for k, v in prior.items()}, {k: v[1] for k, v in prior.items()}),
            n=n,
            ess=sizes.pop(),
            likelihood=likelihood,
        )

    def _prior(self, p: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Mean and precision of the prior of one parameter."""
        state = self.state.get(p, {})
        if "prior_precision" in state:
            return state["prior_mean"], state["prior_precision"]
        mean = torch.zeros(p.shape, dtype=state_dtype(p.dtype), device=p.device)
        return mean, mean.new_tensor(group["ess"] * group["weight_decay"])


def _statistics(view: Views, mean: Tensor, factor: Tensor | float, estimates: int) -> tuple[Tensor, Tensor | None]:
    """The averaged gradient and the averaged product of noise and gradient of one block."""
    gradient = view["gradient"].to(mean.dtype) if "gradient" in view else torch.zeros_like(mean)
    if "sample" not in view:
        return gradient, None
    product = (view["sample"].to(mean.dtype) - mean).mul_(gradient)
    if "product" in view:
        product.add_(view["product"] * factor)
    if "gradients" in view:
        gradient = gradient + view["gradients"] * factor
    if estimates > 1:
        return gradient / estimates, product.div_(estimates)
    return gradient, product
