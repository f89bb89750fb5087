"""Hooks that make a model variational for training code with plain forward, backward and step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from posterity.optim.engine._lifecycle import Lifecycle, Phase, inside_backward
from posterity.trees import looks_at_shapes


class Attachment:
    """The hooks between an optimizer's samples and one model, and the handle that removes them.

    A sample put in place by a training forward pass stays until the backward pass that used it has ended. A second
    training forward pass before that keeps it (both belong to one loss); one after it draws a fresh sample. With
    `ahead` the sample stays until the step, which puts the next one in place, if fused kernels take it.

    Args:
        model: The model.
        samples: The phase of the samples.
        draw: Puts a sample to learn from in place.
        put_mean: Puts the mean in place.
        may_stay: Whether the sample in place may stay until the step.
        look: Looks at the gradients of the sample in place, before anybody scales them.
        ahead: Whether each step is to put the next sample in place.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Lifecycle,
        *,
        draw: Callable[[], None],
        put_mean: Callable[[], None],
        may_stay: Callable[[], bool],
        look: Callable[[], None],
        ahead: bool = False,
    ) -> None:
        samples.ahead |= ahead
        self._samples, self._draw, self._put_mean, self._may_stay = samples, draw, put_mean, may_stay
        self._look = look
        self._model = weakref.ref(model)
        self._hides = False  # whether a pass of this model is why the mean is in place
        self._tasks: set[int] = set()
        self._handles = [
            model.register_forward_pre_hook(_Hook(self._before_forward), prepend=True),  # before shards are gathered
            model.register_forward_hook(_Hook(self._after_forward), always_call=True),
            model.register_state_dict_pre_hook(_Hook(self._before_state_dict)),
            model.register_load_state_dict_pre_hook(_Hook(self._before_state_dict)),
            *(_after_gradient(p, self._on_gradient) for p in model.parameters() if p.is_floating_point()),
        ]

    def remove(self) -> None:
        """Detach the model; it stays at its mean."""
        self._samples.ahead = False
        self._release()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _before_forward(self, model: nn.Module, *_: Any) -> None:
        samples = self._samples
        if model is not self._model() or samples.context_open or inside_backward():
            return
        if samples.failed:
            self._release()
        if model.training and torch.is_grad_enabled() and samples.sampling:
            if samples.phase is Phase.DIFFERENTIATED:
                self._release()
            if samples.phase is not Phase.SAMPLED:
                self._draw()
            samples.passes += 1
        elif samples.used_up:
            self._release()
        elif samples.in_place and not samples.hidden:
            samples.hide(True)
            self._hides = True

    def _after_forward(self, model: nn.Module, _: Any, output: Any) -> None:
        if model is not self._model() or inside_backward():
            return
        samples = self._samples
        if self._hides:
            self._hides = False
            samples.hide(False)
        elif output is None and sys.exc_info()[0] is not None and not samples.context_open:
            samples.abandon()
        elif samples.in_place and not samples.context_open and torch.is_grad_enabled():
            for t in tree_leaves(output):
                if isinstance(t, Tensor) and t.grad_fn is not None:
                    t.register_hook(_Hook(self._on_output))

    def _on_output(self, _: Tensor) -> None:
        """A backward pass has come to the model; should it not come to its end, it has failed."""
        task, backwards = torch._C._current_graph_task_id(), self._samples.backwards
        if task not in backwards and self._samples.in_place:
            backwards.add(task)
            _at_the_end(lambda: backwards.discard(task))

    def _before_state_dict(self, model: nn.Module, *_: Any) -> None:
        if model is self._model() and not looks_at_shapes():
            self._release()

    def _on_gradient(self, _: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self._tasks and self._samples.in_place:
            self._tasks.add(task)
            kept = torch._C._autograd._get_current_graph_task_keep_graph()
            # Once more to the end of the queue: DistributedDataParallel puts averaged gradients in place from there.
            _at_the_end(lambda: _at_the_end(lambda: self._after_backward(task, kept)))

    def _after_backward(self, task: int, graph_kept: bool) -> None:
        self._tasks.discard(task)
        samples = self._samples
        if samples.context_open:
            if samples.train:
                self._look()  # hosts scale gradients inside the closure of a step
            return
        samples.differentiate()
        if torch._C._current_autograd_node() is not None:  # a checkpointed piece has ended, the pass around it has not
            return
        samples.passes -= not graph_kept
        if samples.passes > 0 or graph_kept:
            return
        if samples.ahead and self._may_stay():
            self._look()
        else:
            self._release()

    def _release(self) -> None:
        if not self._samples.context_open:
            self._put_mean()


def _after_gradient(p: Tensor, function: Callable[[Tensor], None]) -> Any:
    """Call a function whenever a gradient has come to a parameter, also to one that is frozen for now."""
    frozen = not p.requires_grad
    handle = p.requires_grad_(True).register_post_accumulate_grad_hook(function)
    p.requires_grad_(not frozen)
    return handle


def _at_the_end(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass that is under way."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


class _Hook:
    """A hook that copies of the model, and files made of it, do not take along."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    return None
