"""Start quickly: torch's optimizers load its compiler at the first call, which takes longer than a small training.

`Optimizer.add_param_group`, `zero_grad` and other methods are decorated to be left out of compiled graphs, and `step`
of most optimizers breaks such graphs; both import `torch._dynamo` whether anything is compiled or not. As long as no
other module has imported it, nothing can be compiled, and they can do without.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

COMPILER = "torch._dynamo"
_DECORATOR = "torch._compile"  # where the decorator lives
_CACHE = "__dynamo_disable"  # where torch keeps the function that stands for a decorated one
_EVERYWHERE = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
_SMALL = 2**23  # multiplications of a step below which a second thread costs more than it does


def put_off_compiler() -> None:
    """Let optimizers, torch's and ours, work without `torch._dynamo` until something else imports it.

    torch looks for the function to call under an attribute of the decorated one, and imports its compiler where it is
    missing. A torch that keeps it elsewhere imports the compiler as before.
    """
    if COMPILER in sys.modules:
        return
    for decorated in _decorated(Optimizer):
        plain = decorated.__wrapped__  # type: ignore[attr-defined]
        if not hasattr(plain, _CACHE):
            setattr(plain, _CACHE, _without_compiler(decorated, plain))


def _decorated(kind: type[Any]) -> Iterator[FunctionType]:
    """Methods of a class, and of those derived from it, that torch keeps out of compiled graphs."""
    for method in vars(kind).values():
        while isinstance(method, FunctionType) and hasattr(method, "__wrapped__"):
            if method.__globals__.get("__name__") == _DECORATOR:
                yield method
            method = method.__wrapped__
    derived: type[Any]
    for derived in kind.__subclasses__():
        yield from _decorated(derived)


def _without_compiler(decorated: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        if getattr(plain, _CACHE, None) is call:
            delattr(plain, _CACHE)  # from now on torch's own way
        return decorated(*args, **kwargs)

    return call


def step_of(optimizer: Optimizer) -> Callable[[], Any]:
    """A function that does `optimizer.step()`, without the compiler and without a record that no profiler reads."""
    inner = getattr(type(optimizer).step, "__wrapped__", None)  # behind hooks and the record
    if inner is None:
        return optimizer.step
    plain = inner.__wrapped__ if inner.__code__.co_name == "_use_grad" else None

    def step() -> Any:
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *_EVERYWHERE)
        wrapped = "step" in vars(optimizer)  # by a scheduler, which counts
        if wrapped or any(hooks) or profiler._is_profiler_enabled or optimizer.defaults.get("differentiable"):
            return optimizer.step()
        if plain is None:
            return inner(optimizer)
        with torch.no_grad():
            return plain(optimizer)

    return step


@contextmanager
def fitting_threads(model: nn.Module, batch_size: int, example: object = None) -> Iterator[None]:
    """One thread for steps so small that a second one is slower, and much slower on a busy machine.

    Args:
        model: What learns.
        batch_size: Examples a step.
        example: Inputs that the model takes. Without them, networks with convolutions keep the threads they have: a
            parameter of a perceptron costs one multiplication for each example, one of a convolution many.
    """
    before = torch.get_num_threads()
    here = before > 1 and next(model.parameters()).device.type == "cpu"
    if not here or batch_size * _multiplications(model, example) > _SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _multiplications(model: nn.Module, example: object) -> float:
    """Multiplications of a forward pass for one example; infinite where they are unknown."""
    shared = [module for module in model.modules() if any(p.ndim > 2 for p in module.parameters(recurse=False))]
    work = float(sum(p.numel() for p in model.parameters()))
    if not shared:
        return work
    if not isinstance(example, torch.Tensor):
        return math.inf
    passes: list[float] = []

    def count(module: nn.Module, _: object, outputs: object) -> None:
        places = outputs.shape[2:].numel() if isinstance(outputs, torch.Tensor) else math.inf
        passes.append((places - 1) * sum(p.numel() for p in module.parameters(recurse=False)))

    modes = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_hook(count) for module in shared]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(example[:1])
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return work + sum(passes)
