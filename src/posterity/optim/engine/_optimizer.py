"""The shell of every variational optimizer: what `torch.optim.Optimizer` promises, over samples and backends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.likelihoods import Likelihood
from posterity.optim._diagnostics import Diagnostics, diagnose, hardly_learnt, learnt
from posterity.optim._distributed import Noise, Replicas, whole
from posterity.optim._forms import all_or_nothing
from posterity.optim._growth import DIVERGES, Growth
from posterity.optim._options import Options, check_flag, check_memory, check_parameters, check_torch_options
from posterity.optim.engine import _priors
from posterity.optim.engine._attach import Attachment
from posterity.optim.engine._backend import Eager, Work
from posterity.optim.engine._checkpoint import checked, with_plain_counters
from posterity.optim.engine._equations import Equations
from posterity.optim.engine._fused import Fused
from posterity.optim.engine._lifecycle import Lifecycle, surely
from posterity.optim.engine._parameters import Group
from posterity.optim.engine._statistics import Statistics
from posterity.posterior import Diagonal, Posterior, Structure
from posterity.trees import Tree

SKIPPED = (
    "a step was skipped because its gradients were NaN, infinite or too large for ess times their squares; "
    "`diagnostics()` counts them"
)
NOISELESS = (
    "step() got gradients at the mean, so the Hessian is not updated: compute the loss inside "
    "`with optimizer.sampled_params(train=True):`, pass a closure to step(), or `attach` the model"
)

OVERWRITTEN = (
    "the parameters were written to while a sample was in place (by load_state_dict or another optimizer); "
    "that is lost, because the mean is put back: write to them outside the sampling context"
)


class VariationalOptimizer(Equations, Optimizer):
    """A `torch.optim.Optimizer` whose parameters are the mean of a Gaussian posterior.

    A subclass holds its equations and nothing else: its options, the initial state of a parameter (`initial_state`),
    the numbers that its equations need (`numbers`), the posterior precision (`precision`) and the update from the
    averaged gradient and the averaged product of noise and gradient (`update`). Parameters equal the mean whenever no
    sample is in place.

    Args:
        params: Parameters, named parameters or parameter groups.
        options: The options of parameter groups that do not have their own.
        mc_samples: Samples for each `step(closure)`.
        prior: A diagonal Gaussian in place of weight decay; needs named parameters.
        fused: Whether kernels may take samples and steps, where there are some; True warns if there are none.
        noise: Of the replicas of a model on many processes: "shared", or "per_rank" for a sample on each.
        process_group: The processes that hold replicas; all by default.
        torch_options: Arguments of torch's optimizers. `foreach` has no effect: tensors are always worked on together.
            The others (`capturable`, `maximize`, `differentiable`) are refused where they cannot have theirs.
    """

    def __init__(
        self,
        params: ParamsT,
        options: Options,
        *,
        mc_samples: int = 1,
        prior: Diagonal | Posterior | None = None,
        fused: bool | None = None,
        noise: Noise = "shared",
        process_group: Any = None,
        torch_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_torch_options(type(self).__name__, torch_options or {}, capturable=self.capturable)
        options.check()  # before the parameters, as torch does
        require_whole("mc_samples", mc_samples)
        if fused is not None:
            check_flag("fused", fused)
        self.mc_samples, self.fused = mc_samples, None if fused is None else bool(fused)
        self._replicas = Replicas(noise, process_group)
        self._forget_transients()
        super().__init__(params, {**vars(options), "draws": 0, "skipped": 0})
        if prior is not None:
            self.set_prior(prior)

    def _forget_transients(self) -> None:
        self._samples = Lifecycle(Statistics(self._replicas.per_rank))
        self._fused, self._eager = Fused(), Eager()
        self._warned: set[str] = set()
        self._growth = Growth()

    _replicas = Replicas()

    # ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Hold a sample of the posterior in the parameters while the context is open.

        Args:
            train: Whether the gradients computed inside are to be learnt from at the next `step`.
        """
        samples = self._samples
        self._recover()
        require(not samples.context_open, "sampled_params", "no sampling context to be open", "a nested one")
        self._put_mean()
        try:
            samples.context_open = True
            self._put_sample(train)
            yield
            if train and samples.until_step and self._fused.may_stay(samples):
                samples.differentiate()
                self._look_at_gradients()
            else:
                self._put_mean()
            samples.context_open = False
        except BaseException:
            samples.broken = True
            surely(samples.abandon)
            raise

    def _recover(self) -> None:
        """Put the mean back where even the end of a context was interrupted."""
        if self._samples.broken:
            self._samples.abandon()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def _put_sample(self, train: bool) -> None:
        if self._samples.use():
            for group in self.param_groups:
                group["draws"] += 1
            return
        fresh, work = self._samples.begin(train, self._trained()), self._work
        try:
            if not self._fused.place(work, fresh):
                self._eager.place(work, fresh)
        except BaseException:
            if not self._samples.context_open:  # whose end does it otherwise
                self._samples.abandon()
            raise
        if self.fused and self._fused.missing:
            self._warn(f"fused=True has no effect: {self._fused.missing}")

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _put_mean(self) -> None:
        samples = self._samples
        if samples.failed:
            samples.abandon()
        if samples.in_place:
            if samples.overwritten:
                self._warn(OVERWRITTEN)
            if not self._fused.take_away(self._work):
                self._eager.take_away(self._work)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _look_at_gradients(self) -> None:
        self._fused.look(self._samples)

    def attach(self, model: nn.Module, *, ahead: bool = False) -> Attachment:
        """Make a model variational for training code that only calls `forward`, `backward` and `step`.

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
        return Attachment(
            model,
            self._samples,
            draw=lambda: self._put_sample(train=True),
            put_mean=self._put_mean,
            may_stay=lambda: self._fused.may_stay(self._samples),
            look=self._look_at_gradients,
            ahead=ahead,
        )

    def train(self) -> None:
        """Let attached models be sampled (the state after construction)."""
        self._samples.sampling = True

    def eval(self) -> None:
        """Put the mean in place and keep it there until `train`."""
        self._put_mean()
        self._samples.sampling = False

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Inside a sampling context the ones so far are one estimate, to be averaged with more."""
        if self._samples.failed:
            self._samples.abandon()
        elif self._samples.context_open and self._samples.train:
            self._samples.close()
        else:
            self._samples.discard()
        self._fused.forget_gradients(self._work)
        super().zero_grad(set_to_none)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step from the gradients; with a closure, evaluate it at `mc_samples` fresh samples first.

        Without noise since the last step the gradient is taken as the gradient at the mean.

        Returns:
            The mean of the closure's losses, or None without a closure.
        """
        samples = self._samples
        self._recover()
        require(not samples.context_open, "step", "the sampling context to be closed", "a step inside it")
        loss = None if closure is None else self._sampled_loss(closure)
        if self._growth.diverges(p for _, p in self._parameters):
            self._warn(DIVERGES.format(self.calmer))
        torch.clear_autocast_cache()  # of weights that are about to change
        if not self._fused.step(self._work):
            self._put_mean()
            self._step_from_mean(max(samples.statistics.closed + 1, 1 if closure is None else self.mc_samples))
        if self._fused.newly_skipped(self._parameters):
            self._warn(SKIPPED)
        return loss

    def _step_from_mean(self, estimates: int) -> None:
        statistics = self._samples.statistics
        ready = [(group, p) for group, p in self._parameters if p.requires_grad and self._has_gradient(p)]
        if not ready and not self._trained():
            self._warn("no parameter requires a gradient, so step() changes nothing")
        try:
            statistics.share(self._replicas, [p for _, p in ready])
            scales = {id(group): self.options_of(group).gradient_scale for group in self.param_groups}
            if statistics.finite({p: scales[id(group)] for group, p in ready}):
                work = self._work
                if not self._fused.update(work, ready, estimates):
                    self._eager.update(work, ready, estimates)
                self._say_if_noiseless(ready)
            else:
                self._skip()
        finally:
            self._samples.discard()

    def _sampled_loss(self, closure: Callable[[], Any]) -> Any:
        self._put_mean()
        pending = self._samples.statistics.finished
        if self.mc_samples > 1 and pending:
            raise expected("step(closure)", "no samples pending when mc_samples > 1", pending)
        total: Any = 0.0
        for _ in range(self.mc_samples):
            with self.sampled_params(train=True), torch.enable_grad():
                loss = closure()
            total = None if loss is None or total is None else total + loss / self.mc_samples
        return total

    def _has_gradient(self, p: Tensor) -> bool:
        return self._samples.statistics.has_gradient(p)

    def _skip(self) -> None:
        for group in self.param_groups:
            group["skipped"] += 1
        self._warn(SKIPPED)

    def _say_if_noiseless(self, ready: list[tuple[Group, Tensor]]) -> None:
        if not self._samples.statistics.finished and any(group["lr"] != 0 for group, _ in ready):
            self._warn(NOISELESS)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=2)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _work(self) -> Work:
        return Work(self._samples, self._parameters, self, self._replicas)

    def add_param_group(self, param_group: Group) -> None:
        options = self.options_of({**self.defaults, **param_group})
        options.check()
        for doubt in options.doubts():
            self._warn(doubt)
        super().add_param_group(param_group)
        try:
            check_parameters(param_group["params"], self.shards)
            check_memory(p for _, p in self._parameters)
        except InvalidInput:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state dict; one of other shapes is refused and changes nothing."""
        require(isinstance(state_dict, Mapping), "state dict", "a dictionary", type(state_dict).__name__)
        self._put_mean()
        self._samples.discard()
        with checked(self, self._parameters, self, self.given), all_or_nothing(self):
            super().load_state_dict(state_dict)

    def state_dict(self) -> StateDict:
        """The state, with plain numbers for counters on a device."""
        return with_plain_counters(super().state_dict())

    def __getstate__(self) -> dict[str, Any]:
        with torch.no_grad():  # what is written down is copied, which results of autograd cannot be
            self._fused.write_down(self._samples)
        own = ("mc_samples", "fused", "_replicas", "_samples")
        return super().__getstate__() | {name: self.__dict__[name] for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_samples" not in self.__dict__:
            self._forget_transients()
        super().__setstate__(state)
        if "_samples" in state:  # a copy: nobody will close a context of it, and torch copies no gradients
            self._samples.end_in_copy()
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
        self._write(**_priors.diagonal_prior(prior))

    def set_term(self, linear: Tree, quadratic: Tree) -> None:
        """Add −linear·θ + ½ quadratic·θ² to the total loss: a Gaussian site in natural parameters.

        Raises unless the precision stays positive for any such term, as with IVON, SOBA and VariationalNewton.

        Args:
            linear: A tensor for each named parameter.
            quadratic: Likewise; entries may be negative.
        """
        self._write(linear=linear, quadratic=quadratic)

    def _write(self, **trees: Tree) -> None:
        for what, tree in trees.items():
            _priors.write(self._parameters, what, tree, self.given, type(self).__name__)
        self._fused.look_again()

    def structure(self, names: Mapping[str, Tensor]) -> Structure:
        """The posterior over named parameters, bare of prior, data and model."""
        groups = {p: group for group, p in self._parameters}
        mean = {name: whole(p) for name, p in names.items()}
        return Diagonal(mean, {name: self.precision_of(p, groups[p]) for name, p in names.items()})

    @torch.no_grad()
    def posterior(self, model: nn.Module, *, likelihood: str | Likelihood, n: int) -> Posterior:
        """Return the posterior N(m, 1/precision) of a model.

        Args:
            model: The model whose parameters this optimizer trains.
            likelihood: What the model's outputs mean.
            n: Number of training examples.
        """
        self._put_mean()
        known = learnt({p: self.state.get(p, {}) for p in self._trained()})
        if message := hardly_learnt(known, self.faster):
            self._warn(message)
        names = _priors.trained(self._parameters, model)
        return _priors.posterior(self._parameters, model, names, self.structure(names), likelihood, n)

    @torch.no_grad()
    def diagnostics(self, loss: float | None = None) -> Diagnostics:
        """Summarise training: widths, signal to noise, KL, bias and more.

        Args:
            loss: The mean loss per example, for the evidence lower bound −ess · loss − KL.
        """
        self._put_mean()
        trained = [(group, p) for group, p in self._parameters if p.requires_grad]
        return diagnose(
            (self.part_of(p, group) for group, p in trained),
            steps=max((self._steps(p) for _, p in trained), default=0),
            skipped=max(int(group["skipped"]) for group in self.param_groups),
            ess=float(self.param_groups[0]["ess"]),
            loss=loss,
        )
