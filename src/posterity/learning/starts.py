"""Where the members of ensembles and mixtures start: the same network, with weights of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from posterity.errors import expected, require
from posterity.learning.seeding import own_randomness, seed_step


def reinitialised(model: nn.Module | Callable[[], nn.Module], seed: int, k: int, *, partly: bool = False) -> nn.Module:
    """Member k before training: made by the function, or a copy with its weights drawn anew.

    Args:
        model: A function that makes it, or one to copy.
        seed: Of the weights.
        k: Which member.
        partly: Leave weights that no method draws as they are, such as a token of a vision transformer.
    """
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    device = torch.device("cpu") if parameter is None else parameter.device
    with own_randomness(device):
        seed_step(seed, k, device)
        if not isinstance(model, nn.Module):
            made = model()
            if not isinstance(made, nn.Module):
                raise expected("model", "a function that makes a torch.nn.Module", type(made).__name__)
            return made
        member = copy.deepcopy(model)
        for name, module in member.named_modules():
            reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
            if reset is not None:
                reset()
            elif not partly and next(module.parameters(recurse=False), None) is not None:
                raise expected(
                    f"module {name!r}", "a method reset_parameters (or a function that makes the model)", None
                )
        return member


def require_no_statistics(model: nn.Module) -> None:
    """Raise if a member of a mixture has running statistics: a posterior carries one set of buffers for all of them."""
    statistics = [name for name, b in model.named_buffers() if b.is_floating_point()]
    require(not statistics, "model", "no running statistics, which the members of a mixture share", statistics[:1])
