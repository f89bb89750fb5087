"""The linear layer that makes a model's outputs: its features, and how it grows."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.errors import require
from posterity.inputs import Inputs, attempt, move, take
from posterity.posterior import Posterior
from posterity.trees import Tree, evaluating, trainable

LARGEST = 10_000  # weights whose Hessian Newton's method can hold and factorise: 0.8 GB


@dataclass(frozen=True)
class Head:
    """A linear layer, by name.

    Weights are handled as one matrix W (K, D), the bias as its last column; `order` leads from the flat W to the
    flat vector of a posterior (weight, then bias).
    """

    name: str
    layer: nn.Linear

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its parameters in the model."""
        prefix = f"{self.name}." if self.name else ""
        return (f"{prefix}weight",) if self.layer.bias is None else (f"{prefix}weight", f"{prefix}bias")

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D) of W."""
        return self.layer.out_features, self.layer.in_features + (self.layer.bias is not None)

    def order(self) -> Tensor:
        """Positions in the flat W of weight, then bias."""
        place = torch.arange(self.shape[0] * self.shape[1]).reshape(self.shape)
        parts = [place] if self.layer.bias is None else [place[:, :-1], place[:, -1]]
        return torch.cat([part.reshape(-1) for part in parts])

    def matrix(self, tree: Tree) -> Tensor:
        """W (K, D) from the parameters by name, in float64."""
        columns = [tree[self.names[0]]] + [tree[name].unsqueeze(1) for name in self.names[1:]]
        return torch.cat(columns, 1).double()

    def tree(self, w: Tensor) -> Tree:
        """The parameters by name from W."""
        if self.layer.bias is None:
            return {self.names[0]: w}
        return {self.names[0]: w[:, :-1].contiguous(), self.names[1]: w[:, -1].contiguous()}

    def features(self, model: nn.Module, inputs: Inputs, count: int, chunk: int = 1024) -> Tensor:
        """What the layer is given for each example, with a 1 for the bias: (N, D) in float64."""
        device = next(model.parameters()).device
        seen: list[Tensor] = []
        module = dict(model.named_modules())[self.name]
        handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().double()))
        try:
            with evaluating(model), torch.no_grad():
                for rows in torch.arange(count).split(chunk):
                    attempt(model, move(take(inputs, rows), device))
        finally:
            handle.remove()
        x = torch.cat(seen)
        require(x.dim() == 2, "features of the last layer", "one row for each example", tuple(x.shape))
        return x if self.layer.bias is None else torch.cat((x, torch.ones_like(x[:, :1])), 1)


def find_head(model: nn.Module, inputs: Inputs) -> Head | None:
    """The linear layer whose output is the model's, or None; `inputs` need only hold one example."""
    found: list[tuple[str, nn.Linear, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda m, _, out, name=name: found.append((name, m, out)))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with evaluating(model), torch.no_grad():
            f = attempt(model, move(take(inputs, torch.arange(1)), next(model.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return next((Head(name, layer) for name, layer, out in reversed(found) if torch.equal(out, f)), None)


def is_linear(model: nn.Module, posterior: Posterior, head: Head | None) -> bool:
    """Whether the head is all that the posterior is uncertain about and all that would be trained."""
    return (
        head is not None
        and set(gaussian_of(posterior.structure).names) == set(head.names)
        and solvable(model, posterior, head)
    )


def solvable(model: nn.Module, posterior: Posterior, head: Head | None) -> bool:
    """Whether the head is all that would be trained, and small enough for Newton's method."""
    if head is None or math.prod(head.shape) > LARGEST:
        return False
    return posterior.structure.varying is not posterior.structure or solvable_alone(model, head)


def solvable_alone(model: nn.Module, head: Head) -> bool:
    """Whether nothing but the head learns, and it is small enough for Newton's method."""
    return math.prod(head.shape) <= LARGEST and set(trainable(model)) == set(head.names)


def grown(model: nn.Module, head: Head, classes: int) -> nn.Module:
    """A copy of the model with outputs for more classes; those of new ones start at zero."""
    bigger = copy.deepcopy(model)
    old = dict(bigger.named_modules())[head.name]
    assert isinstance(old, nn.Linear)
    new = nn.Linear(old.in_features, classes, head.layer.bias is not None).to(old.weight)
    with torch.no_grad():
        for p, q in zip(new.parameters(), old.parameters()):
            p.zero_()[: len(q)] = q
            p.requires_grad_(q.requires_grad)
    if not head.name:
        return new
    parent, _, last = head.name.rpartition(".")
    setattr(bigger.get_submodule(parent), last, new)
    return bigger
