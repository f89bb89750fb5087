"""The networks that a run can have: four by name, and any that a function of the user makes."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from posterity.errors import InvalidInput, expected, require
from posterity.learning import insert_dropout
from posterity.runs.residual_network import ResidualNetwork
from posterity.runs.table_network import TableNetwork

HEAD = "head"  # a linear classifier that `posterity.runs.heads` trains to its optimum
RESIDUAL = "residual"  # a linear model of amounts that a network corrects
WIDEST = 2**24  # of layers; a number that asks for more was mistyped
HIDDEN = {"mlp": (64, 64), "cnn": (16, 32), "tabular": (64, 64), RESIDUAL: (64, 64)}


def network(
    spec: str,
    shape: tuple[int, ...],
    outputs: int,
    hidden: Sequence[int] | None = None,
    seed: int = 0,
    dropout: float | None = None,
) -> nn.Module:
    """A network by its description, with weights that depend on the seed alone.

    Args:
        spec: "linear", "head", "mlp", "tabular" (see `TableNetwork`), "residual" (see `ResidualNetwork`), "cnn", or
            "module:factory": a function that makes a network. It is given those of the arguments `inputs` (the shape of
            one example) and `outputs` that it has.
        shape: Shape of one example's inputs.
        outputs: Number of outputs.
        hidden: Widths of the hidden layers, 64,64 by default; channels of the convolutions of "cnn", 16,32.
        seed: Seed of the initial weights.
        dropout: Rate of dropout behind every hidden layer.
    """
    require(hidden is None or spec in HIDDEN, "hidden", f"none for the model {spec!r}", hidden)
    widths = HIDDEN.get(spec, ()) if hidden is None else tuple(hidden)
    require(all(width >= 1 for width in widths), "hidden", "positive widths", widths)
    require(all(width <= WIDEST for width in widths), "hidden", f"widths of at most {WIDEST}", max(widths, default=0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ":" not in spec and spec not in _BY_NAME:
            raise expected("model", f"one of {sorted(_BY_NAME)}, or module:factory", spec)
        made = _made(spec, shape, outputs) if ":" in spec else _BY_NAME[spec](shape, outputs, widths)
        if dropout is not None:
            insert_dropout(made, dropout)
        return made


def _linear(shape: tuple[int, ...], outputs: int, hidden: Sequence[int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def _mlp(shape: tuple[int, ...], outputs: int, hidden: Sequence[int]) -> nn.Module:
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def _cnn(shape: tuple[int, ...], outputs: int, hidden: Sequence[int]) -> nn.Module:
    if len(shape) != 3:
        raise expected("model", "pictures for a cnn (tabular, mlp or linear take tables)", f"inputs of shape {shape}")
    channels = [shape[0], *hidden]
    layers: list[nn.Module] = []
    height, width = shape[1:]
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * height * width, outputs))


def _tabular(shape: tuple[int, ...], outputs: int, hidden: Sequence[int]) -> nn.Module:
    require(len(hidden) > 0, "hidden", "at least one hidden layer for the model 'tabular'", hidden)
    return TableNetwork(math.prod(shape), outputs, hidden)


def _residual(shape: tuple[int, ...], outputs: int, hidden: Sequence[int]) -> nn.Module:
    require(len(hidden) > 0, "hidden", "at least one hidden layer for the model 'residual'", hidden)
    return ResidualNetwork(math.prod(shape), outputs, hidden)


_BY_NAME = {"linear": _linear, HEAD: _linear, "mlp": _mlp, "tabular": _tabular, RESIDUAL: _residual, "cnn": _cnn}


def _made(spec: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """What a function of the user makes; its module is looked for in the present folder, too."""
    module_name, _, name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), name, None)
    except Exception as why:  # code of the user: whatever it raises is its own
        got = f"{module_name!r}: {type(why).__name__}: {why}"
        raise InvalidInput(f"model: expected a module that can be imported, got {got}") from why
    if not callable(factory):
        got = "none" if factory is None else type(factory).__name__
        raise InvalidInput(f"model: expected a function {name!r} in {module_name!r}, got {got}")
    given = {"inputs": shape, "outputs": outputs}
    asked = {k: v for k, v in given.items() if k in inspect.signature(factory).parameters}
    try:
        made = factory(**asked)
    except Exception as why:
        got = f"{type(why).__name__}: {why}"
        raise InvalidInput(f"model: expected {spec} to make a network, got an error of its own: {got}") from why
    if not isinstance(made, nn.Module):
        raise expected("model", f"a torch.nn.Module from {spec}", type(made).__name__)
    return made
