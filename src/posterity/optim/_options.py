"""The options of a parameter group, declared once: a dataclass for each optimizer, whose fields check themselves.

Messages are in torch's own words where torch has some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from posterity.errors import InvalidInput, expected, huge, require, require_finite, require_whole
from posterity.optim._distributed import sharded

RANGES = {  # what a number has to be, in words and in code
    "a number >= 0": lambda x: 0 <= x < math.inf,
    "a positive finite number": lambda x: 0 < x < math.inf,
    "a positive number": lambda x: x > 0,
    "a number in [0, 1)": lambda x: 0 <= x < 1,
    "a number in (0, 1]": lambda x: 0 < x <= 1,
}

LARGEST = 2**63 - 1  # that a counter holds
TORCH_OPTIONS = {  # arguments of torch's optimizers, and why they cannot be True here
    "foreach": "",  # tensors are always worked on together
    "capturable": "",
    "fused": "there are no kernels for its equations",
    "maximize": "a posterior is proportional to exp(-ess * loss), so minimise the negative of what is to be maximised",
    "differentiable": "samples and steps are taken in place, outside autograd",
}


def check_parameters(parameters: Iterable[Tensor], shards: bool) -> None:
    """Real numbers, and whole tensors unless the optimizer can work on shards."""
    for p in parameters:
        require(p.is_floating_point(), "params", "real floating-point parameters", p.dtype)
        require(shards or not sharded(p), "params", "whole parameters on each process", "sharded ones")


def check_memory(parameters: Iterable[Tensor]) -> None:
    """Parameters that do not share memory: a sample in one would be a change of the mean of another."""
    spans = sorted((p.data_ptr(), _end(p), i, p) for i, p in enumerate(dict.fromkeys(parameters)) if _addressable(p))
    for at, (_, end, _, p) in enumerate(spans):
        for start, _, _, other in spans[at + 1 :]:
            if start >= end:
                break
            if (p.is_contiguous() and other.is_contiguous()) or bool(torch.isin(_bytes(p), _bytes(other)).any()):
                raise expected("params", "parameters that do not share memory", "two that overlap")


def _addressable(p: Tensor) -> bool:
    return not sharded(p) and type(p.data) is Tensor and p.device.type != "meta" and p.numel() > 0


def _end(p: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
    return p.data_ptr() + (last + 1) * p.element_size()


def _bytes(p: Tensor) -> Tensor:
    """The addresses of all elements of a tensor."""
    offsets = torch.zeros(p.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(p.shape, p.stride(), strict=True)):
        steps = torch.arange(size) * stride
        offsets += steps.view(-1, *(1 for _ in p.shape[axis + 1 :]))
    return p.data_ptr() + offsets.reshape(-1) * p.element_size()


def check_torch_options(kind: str, given: Mapping[str, Any], capturable: bool) -> None:
    """Arguments of torch's own optimizers that have no effect here, or cannot have theirs.

    Args:
        kind: The optimizer.
        given: The arguments.
        capturable: Whether its steps can be captured in a CUDA graph.
    """
    reasons = dict(TORCH_OPTIONS)
    if not capturable:
        reasons["capturable"] = "its counters live on the host; use IVON in CUDA graphs"
    for name, value in given.items():
        if name not in reasons:
            raise TypeError(f"{kind}.__init__() got an unexpected keyword argument {name!r}")
        if value is not None or name not in ("foreach", "fused"):
            check_flag(name, value)
        if value and reasons[name]:
            raise InvalidInput(f"{name}: expected False for {kind}, got True; {reasons[name]}")


def betas_of_ivon_opt(betas: tuple[Any, Any], given: dict[str, Any]) -> tuple[Any, Any]:
    """β₁ and β₂, where ivon-opt's arguments `beta1`, `beta2` and `sync` may be among the others; they are taken out."""
    if given.pop("sync", False):
        raise InvalidInput(
            "sync: expected False, got True; DistributedDataParallel averages the gradients, and noise='per_rank' "
            "draws a sample on each process"
        )
    if given.keys().isdisjoint(("beta1", "beta2")):
        return betas
    return given.pop("beta1", betas[0]), given.pop("beta2", betas[1])


def check_number(what: str, value: Any, wanted: str) -> None:
    """A number of Python's or numpy's in one of the `RANGES`, and no tensor, word or truth value."""
    plain = isinstance(value, Real) and not isinstance(value, bool) and not huge(value)
    require(plain and RANGES[wanted](float(value)), what, wanted, value)


def check_finite(what: str, value: Any, least: float = -math.inf) -> None:
    """A finite number, or a tensor of one, that is large enough."""
    require_finite(what, value.item() if isinstance(value, Tensor) and value.numel() == 1 else value, least)


def check_counters(group: Mapping[str, Any]) -> None:
    """Draws and skipped steps of a saved group: whole numbers, or tensors of one."""
    for name in ("draws", "skipped"):
        value = group.get(name, 0)
        check_finite(f"state dict, {name}", value, 0.0)
        require(float(value) % 1 == 0 and float(value) < LARGEST, f"state dict, {name}", "a whole number < 2^63", value)


def check_lr(lr: Any) -> None:
    """A learning rate: a number >= 0, or a tensor of one."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise InvalidInput(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    check_number("Invalid learning rate", lr.item() if isinstance(lr, Tensor) else lr, "a number >= 0")


def check_weight_decay(weight_decay: Any) -> None:
    """Weight decay."""
    check_number("Invalid weight_decay value", weight_decay, "a number >= 0")


def check_eps(eps: Any) -> None:
    """What keeps a denominator from zero."""
    check_number("Invalid epsilon value", eps, "a number >= 0")


def check_beta(beta: Any, index: int = 0) -> None:
    """The decay of an average."""
    check_number(f"Invalid beta parameter at index {index}", beta, "a number in [0, 1)")


def check_betas(betas: Any, auto: bool = False) -> None:
    """The decays of two averages; with `auto`, the second may be "auto"."""
    require(isinstance(betas, Sequence) and len(betas) == 2, "betas", "two numbers", betas)
    check_beta(betas[0])
    if auto and isinstance(betas[1], str):
        require(betas[1] == "auto", "Invalid beta parameter at index 1", "a number in [0, 1), or 'auto'", betas[1])
    else:
        check_beta(betas[1], 1)


def check_seed(seed: Any) -> None:
    """The seed of the noise: a whole number of Python's or numpy's."""
    require(isinstance(seed, Integral) and not isinstance(seed, bool), "seed", "a whole number", seed)


def check_whole_or_none(what: str, value: Any) -> None:
    """A whole number >= 1, or None."""
    if value is not None:
        require_whole(what, value)
        require(not huge(value), what, "a number that a float holds", value)


def check_size_or_none(n: Any) -> None:
    """A number of examples, or None."""
    if n is not None:
        check_number("n", n, "a positive finite number")


def check_word(what: str, value: Any, words: tuple[str, str]) -> None:
    """One of two words."""
    require(value in words, what, " or ".join(map(repr, words)), value)


def check_flag(what: str, value: Any) -> None:
    """A truth value of Python's or numpy's, and nothing that only counts as one."""
    require(isinstance(value, (bool, np.bool_)), what, "True or False", value)


def option(check: Callable[[Any], None]) -> Any:
    """A field of options, and what checks its value."""
    return field(metadata={"check": check})


LR = {"check": check_lr}  # of the field of a learning rate


def in_range(name: str, wanted: str) -> Any:
    """A field of options that is a number in one of the `RANGES`."""
    return option(partial(check_number, name, wanted=wanted))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one parameter group. `torch` keeps them in a dictionary, of which `of` takes its look."""

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Self:
        """The options that a parameter group has at the moment."""
        return cls(**{name: group[name] for name in cls.__dataclass_fields__})

    def check(self) -> None:
        """Raise unless each option, and all of them together, make sense."""
        for name, about in self.__dataclass_fields__.items():
            about.metadata["check"](getattr(self, name))

    def doubts(self) -> Iterator[str]:
        """What is allowed and hardly meant, each with its cure."""
        yield from ()

    @property
    def gradient_scale(self) -> float:
        """What the equations multiply squares of gradients with, which have to stay finite."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class GaussianOptions(Options):
    """What decides the width of a Gaussian posterior, how fast its mean moves, and its noise."""

    lr: float | Tensor = field(metadata=LR)
    ess: float = in_range("ess", "a positive finite number")
    hess_init: float = in_range("hess_init", "a positive finite number")
    weight_decay: float = option(check_weight_decay)
    seed: int = option(check_seed)

    @property
    def gradient_scale(self) -> float:
        return float(self.ess)


def floats(options: Options, *names: str) -> dict[str, float]:
    """Some options as the numbers of equations; weight decay is δ there."""
    return {"delta" if name == "weight_decay" else name: float(getattr(options, name)) for name in names}


def number(lr: float | Tensor) -> float | Tensor:
    """A learning rate that arithmetic broadcasts over anything."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr
