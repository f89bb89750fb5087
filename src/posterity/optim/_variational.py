"""The engine under every variational optimizer: samples in and out of place, statistics, skipped steps, state."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.likelihoods import Likelihood
from posterity.noise import Key
from posterity.optim import _priors, kernels
from posterity.optim._attach import Attachment
from posterity.optim._checkpoint import checked, followed, with_plain_counters
from posterity.optim._diagnostics import Diagnostics, diagnose, warn_if_hardly_learnt
from posterity.optim._distributed import Noise, Replicas, first_index, local
from posterity.optim._fast import FastPath
from posterity.optim._options import check_parameters
from posterity.optim._samples import NOISELESS, SKIPPED, Samples
from posterity.optim.kernels import Numbers, Piece, Views
from posterity.posterior import Diagonal, Posterior, Structure
from posterity.trees import Tree

Group = dict[str, Any]


class VariationalOptimizer(Optimizer):
    """A `torch.optim.Optimizer` whose parameters are the mean of a Gaussian posterior.

    A subclass holds its equations and nothing else: the initial state of a parameter (`initial_state`), the numbers
    that its equations need (`numbers`), the posterior precision (`precision`) and the update from the averaged
    gradient and the averaged product of noise and gradient (`update`). Parameters equal the mean whenever no sample
    is in place.

    Args:
        params: Parameters, named parameters or parameter groups.
        defaults: Options of the parameter groups; `seed`, `ess` and `weight_decay` are read here.
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        fused: Whether kernels may take samples and steps, where there are some; True says why if there are none.
        noise: Of the replicas of a model on many processes: "shared", or "per_rank" for a sample on each.
        process_group: The processes that hold replicas; all by default.
    """

    def __init__(
        self,
        params: ParamsT,
        defaults: Group,
        *,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        fused: bool | None = None,
        noise: Noise = "shared",
        process_group: Any = None,
    ) -> None:
        require_whole("mc_samples", mc_samples)
        self.mc_samples, self.fused = mc_samples, fused
        self._replicas = Replicas(noise, process_group)
        self._forget_transients()
        super().__init__(params, {**defaults, "draws": 0, "skipped": 0})
        require(bool(self._trained()), "params", "at least one that requires a gradient", "only frozen ones")
        if prior is not None:
            self.set_prior(prior)

    def _forget_transients(self) -> None:
        self._samples = Samples(per_rank=self._replicas.per_rank)
        self._context_open, self._sampling, self._predictions = False, True, 0
        self._warned: set[str] = set()
        self._fast = FastPath(self)

    _replicas = Replicas()
    widths: tuple[str, ...]  # names of the state that `precision` reads
    written: tuple[str, ...]  # names of the state that `update` changes
    given: tuple[str, ...] = ("prior_mean", "prior_precision")  # names of the state that users may set
    faster = 'betas=(0.9, "auto") and total_steps'  # what lets the Hessian move faster
    shards = True  # whether parameters may be sharded

    # ── what a subclass provides ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def initial_state(self, p: Tensor, group: Group) -> Views:
        """State of a parameter before its first update, besides `step`."""

    @abstractmethod
    def numbers(self, p: Tensor, group: Group) -> Numbers:
        """The numbers of one parameter's equations, from its group and its state."""

    @staticmethod
    @abstractmethod
    def precision(view: Mapping[str, Tensor], numbers: Numbers) -> Tensor | float:
        """Posterior precision of each weight of a block."""

    @staticmethod
    @abstractmethod
    def update(view: Views, mean: Tensor, gradient: Tensor, product: Tensor | None, numbers: Numbers) -> None:
        """Update mean and state of a block in place; the product of noise and gradient is None without noise."""

    def observe(self, p: Tensor, tensors: Views, group: Group, numbers: Numbers) -> None:
        """Called before a parameter is updated: measure what `diagnostics` tells, adapt numbers to it."""

    def forget(self, p: Tensor, rate: float | Tensor) -> None:
        """Count that the precision of a parameter forgets this share of its initial value in the coming update."""
        kept = (-rate).log1p() if isinstance(rate, Tensor) else math.log(max(1 - rate, 1e-9))
        self.state[p]["forgetting"].sub_(kept)

    def clipped(self, p: Tensor, group: Group) -> int:
        """How many weights of a parameter a bound on the step holds back at the moment."""
        return 0

    def constants(self, group: Group) -> list[float]:
        """The numbers of a group for fused kernels, in the order of `kernels.NUMBERS`; empty without such kernels."""
        return []

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
        """
        require(not self._context_open, "sampled_params", "no sampling context to be open", "a nested one")
        self._put_mean()
        self._context_open = True
        try:
            self._put_sample(train)
            yield
            if not (train and self._fast.linger()):
                self._take_away()
        except BaseException:
            self._put_mean()
            self._samples.discard()
            raise
        finally:
            self._context_open = False

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def _put_sample(self, train: bool) -> None:
        samples = self._samples
        fresh = samples.begin(train, self._trained())
        if train and self._fast.put_sample(fresh):
            return
        trainable = [(i, group, p) for i, (group, p) in enumerate(self._parameters()) if p.requires_grad]
        for group in self.param_groups:
            group["draws"] += train and fresh
        self._predictions += not train
        pieces, buffers = [], {}
        for index, group, p in trainable:
            step, sample = (int(group["draws"]), self._replicas.rank) if train else (0, self._predictions - 1)
            buffers[p] = samples.buffer(p)
            state = followed(self.state.get(p, {}), p)
            widths = {name: local(t) for name, t in state.items() if name in self.widths}
            tensors = {"p": local(p.detach()), "buffer": buffers[p], **widths}
            key = Key(group["seed"], step, sample, index)
            pieces.append(Piece(tensors, self.numbers(p, group), key, first_index(p)))
        overwritten: list[Piece] = []
        try:
            self._perturb(pieces, overwritten)
        except BaseException:
            for piece in overwritten:
                piece.tensors["p"].copy_(piece.tensors["buffer"])
            raise
        samples.placed(buffers)

    def _perturb(self, pieces: list[Piece], overwritten: list[Piece]) -> None:
        """Put a sample in place of each mean, and the mean into the buffer."""
        kernels.perturb(self.precision, pieces, overwritten)

    def _put_mean(self) -> None:
        if self._samples.means:
            self._take_away()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _take_away(self) -> None:
        if not self._fast.take_away():
            self._samples.take_away(self._fast.exchange)

    def attach(self, model: nn.Module, *, ahead: bool = False) -> Attachment:
        """Make a model variational for any training code that only knows `forward`, `backward` and `step`.

        While the model trains with gradients on, each forward pass holds a fresh sample until its backward pass ends;
        at all other times the parameters are the mean.

        Args:
            model: The model.
            ahead: Let each step put the next sample in place in the same pass over memory, where fused kernels take it.
                Evaluation passes of the model, its state dict and everything asked of the optimizer still see the mean;
                who reads the parameters by other ways calls `eval()` first.

        Returns:
            A handle; `remove()` detaches the model again.
        """
        return Attachment(self, model, ahead)

    def train(self) -> None:
        """Let attached models be sampled (the state after construction)."""
        self._sampling = True

    def eval(self) -> None:
        """Put the mean in place and keep it there until `train`."""
        self._put_mean()
        self._sampling = False

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Inside a sampling context the ones so far are one estimate, to be averaged with more."""
        if self._context_open and self._samples.train:
            self._samples.close()
        else:
            self._samples.discard()
        self._fast.forget_gradients()
        super().zero_grad(set_to_none)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step from the gradients; with a closure, evaluate it at `mc_samples` fresh samples first.

        Without noise since the last step the gradient is taken as the gradient at the mean.

        Returns:
            The mean of the closure's losses, or None without a closure.
        """
        require(not self._context_open, "step", "the sampling context to be closed", "a step inside it")
        loss = None if closure is None else self._sampled_loss(closure)
        torch.clear_autocast_cache()  # of weights that are about to change
        if self._fast.step():
            return loss
        self._put_mean()
        estimates = max(self._samples.closed + 1, 1 if closure is None else self.mc_samples)
        ready = [(group, p) for group, p in self._parameters() if p.requires_grad and self._has_gradient(p)]
        try:
            self._replicas.average(self._samples, [p for _, p in ready])
            if self._samples.finite({p: float(group["ess"]) if "hess_init" in group else 1.0 for group, p in ready}):
                if not self._fast.update([p for _, p in ready], estimates):
                    self._update([self._evidence(p, group, estimates) for group, p in ready])
                self._say_if_noiseless(ready)
            else:
                self._skip()
        finally:
            self._samples.discard()
        return loss

    def _update(self, pieces: list[Piece]) -> None:
        """Update mean and state of each parameter from its statistics."""
        kernels.update(self.update, pieces, self.written)

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        self._put_mean()
        if self.mc_samples > 1 and self._samples.finished:
            raise expected("step(closure)", "no samples pending when mc_samples > 1", self._samples.finished)
        total: Any = 0.0
        for _ in range(self.mc_samples):
            with self.sampled_params(train=True), torch.enable_grad():
                loss = closure()
            total = None if loss is None or total is None else total + loss / self.mc_samples
        return total

    def _evidence(self, p: Tensor, group: Group, estimates: int) -> Piece:
        """All that the update of a parameter needs: its mean, state, gradient and samples."""
        self._state_of(p, group)["step"] += 1
        tensors = {name: local(t) for name, t in {"p": p.detach(), **self._tensors(p)}.items()}
        found, scales = self._samples.evidence(p, estimates)
        tensors, numbers = tensors | found, self.numbers(p, group) | scales
        self.observe(p, tensors, group, numbers)
        return Piece(tensors, numbers)

    def _has_gradient(self, p: Tensor) -> bool:
        kept = self._samples.kept.get(p)
        return p.grad is not None or (kept is not None and kept.gradients is not None)

    def _skip(self) -> None:
        for group in self.param_groups:
            group["skipped"] += 1
        self._warn(SKIPPED)

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        if not self._samples.finished and any(group["lr"] != 0 for group, _ in ready):
            self._warn(NOISELESS)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=2)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _parameters(self) -> Iterator[tuple[Group, Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    def _trained(self) -> list[Tensor]:
        return [p for _, p in self._parameters() if p.requires_grad]

    def _state_of(self, p: Tensor, group: Group) -> Views:
        state: Views = self.state[p]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state.update({name: t if t.ndim else local(t) for name, t in self.initial_state(p, group).items()})
        return followed(state, p)

    def _steps(self, p: Tensor) -> int:
        """How often a parameter has been updated, the update under way included."""
        return int(self.state.get(p, {}).get("step", 0))

    def _tensors(self, p: Tensor) -> Views:
        """The state that has one number for each weight."""
        return {name: t for name, t in self.state.get(p, {}).items() if name != "step" and t.shape == p.shape}

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        try:
            check_parameters(param_group["params"], self.shards)
        except InvalidInput:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; one of other shapes is refused and changes nothing."""
        self._put_mean()
        self._samples.discard()
        with checked(self):
            super().load_state_dict(state_dict)

    def state_dict(self) -> StateDict:
        """The state, with plain numbers for counters that live on a device."""
        return with_plain_counters(super().state_dict())

    def __getstate__(self) -> dict[str, Any]:
        self._fast.store()
        own = ("mc_samples", "fused", "_replicas", "_samples")
        return super().__getstate__() | {name: self.__dict__[name] for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_samples" not in self.__dict__:
            self._forget_transients()
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                if name != "differentiable":  # torch adds this one to the defaults of whatever is loaded
                    group.setdefault(name, value)
        for values in self.state.values():
            if "step" in values:
                values["step"] = torch.as_tensor(values["step"], dtype=torch.float32).clone()  # torch shares it

    # ── the prior and the posterior ──────────────────────────────────────────────────────────────────────────────

    def set_prior(self, prior: Diagonal | Posterior) -> None:
        """Take a diagonal Gaussian over the named parameters as the prior, in place of weight decay."""
        _priors.set_prior(self, prior)

    def set_term(self, linear: Tree, quadratic: Tree) -> None:
        """Add −linear·θ + ½ quadratic·θ² to the total loss: a Gaussian site in natural parameters.

        Refused unless the precision stays positive whatever the term, as with IVON, SOBA and VariationalNewton.

        Args:
            linear: A tensor for each named parameter.
            quadratic: Likewise; entries may be negative.
        """
        _priors.set_term(self, linear, quadratic)

    def structure(self, names: Mapping[str, Tensor]) -> Structure:
        """The posterior over named parameters, bare of prior, data and model."""
        return _priors.diagonal(self, names)

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Hand over the posterior N(m, 1/precision) of a model.

        Args:
            model: The model whose parameters this optimizer trains.
            likelihood: What the model's outputs mean.
            n: Number of training examples.
        """
        self._put_mean()
        warn_if_hardly_learnt(self)
        return _priors.posterior(self, model, likelihood, n)

    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """Say how training stands: widths, signal to noise, KL, bias and more.

        Args:
            loss: The mean loss per example, for the evidence lower bound −ess · loss − KL.
        """
        self._put_mean()
        return diagnose(self, loss)
