"""The network to compute with: a double of the caller's model that holds the posterior mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from posterity.doubles import double
from posterity.posterior._posterior import Posterior
from posterity.trees import evaluating


@contextmanager
def private(model: nn.Module, posterior: Posterior) -> Iterator[nn.Module]:
    """A network at the posterior mean, in evaluation mode, that no other thread computes with or changes.

    It is a double, so the caller's model is only read. Where none can be made (compiled, scripted or sharded models,
    and those whose `forward` was replaced in the object), it is the model itself: other threads wait, and afterwards
    it is as it was.
    """
    posterior.check(model)
    own = double_at_mean(model, posterior)
    if own is not None:
        yield own
        return
    with evaluating(model), posterior.applied(model):
        yield model


def double_at_mean(model: nn.Module, posterior: Posterior) -> nn.Module | None:
    """A double that holds the posterior mean, in evaluation mode, or None where none can be made."""
    there: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    buffers = {**dict(model.named_buffers()), **posterior.buffers}  # a network may write into them
    values = {**{name: b.clone() for name, b in buffers.items()}, **posterior.mean}
    own = double(model, {name: value.to(there[name]) for name, value in values.items()})
    return None if own is None else own.eval()
