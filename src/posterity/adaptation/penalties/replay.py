"""Replay: the remembered examples with their own labels."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.penalty import Penalty
from posterity.curvature import pullback
from posterity.errors import expected, require
from posterity.inputs import Inputs, call, move, take
from posterity.likelihoods import Likelihood
from posterity.posterior import Memory
from posterity.trees import Tree, evaluating, snapshot, trainable


@dataclass(frozen=True, eq=False)
class OverMemory(Penalty):
    """A sum over weighted examples, Σ_i w_i d(f_i); with a batch size, an unbiased estimate of it.

    Examples are looked at in evaluation mode. A subset is drawn with torch's own generator at every call.

    Args:
        memory: The examples.
        likelihood: What the outputs mean.
        batch_size: Examples for each call; all of them unless given.
    """

    memory: Memory
    likelihood: Likelihood
    batch_size: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require(self.batch_size is None or self.batch_size >= 1, "batch_size", "an integer >= 1", self.batch_size)
        known = isinstance(self.likelihood, Likelihood)
        require(known, "likelihood", "a Likelihood, such as that of a posterior", self.likelihood)

    def total(self, model: nn.Module) -> Tensor:
        device = next(model.parameters()).device
        rows = self._rows()
        f = self.outputs(model, move(take(self.memory.inputs, rows), device))
        weights = self.memory.weights if rows is None else self.memory.weights[rows] * (len(self.memory) / len(rows))
        return (weights.to(f) * self.each(f, rows)).sum()

    def outputs(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The model's outputs for the examples."""
        with evaluating(model):
            return call(model, inputs)

    @abstractmethod
    def each(self, f: Tensor, rows: Tensor | None) -> Tensor:
        """d(f_i) of the examples in these rows, without their weights."""

    def _rows(self) -> Tensor | None:
        if self.batch_size is None or self.batch_size >= len(self.memory):
            return None
        return torch.randperm(len(self.memory))[: self.batch_size].to(self.memory.ids.device)


@dataclass(frozen=True, eq=False)
class Replay(OverMemory):
    """Σ_i w_i ℓ(f_i, y_i)."""

    def each(self, f: Tensor, rows: Tensor | None) -> Tensor:
        y = take(self.memory.targets, rows).to(f.device)
        return self.likelihood.loss(f, y.to(f.dtype) if y.is_floating_point() else y)


@dataclass(frozen=True, eq=False)
class NewData(Replay):
    """Σ_i w_i ℓ(f_i, y_i) over data that are being learnt: the model is looked at in the mode it is in."""

    def outputs(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return call(model, inputs)


@dataclass(frozen=True, eq=False)
class ResidualReplay(OverMemory):
    """Σ_i w_i f_iᵀe_i − ⟨g, θ⟩: what true labels add to the old model's soft ones, and nothing to first order at θ*.

        gradient:  Σ_i w_i (J_i(θ) − J_i(θ*))ᵀ e_i,    e_i = ∂ℓ/∂f at (f*_i, y_i),    g = Σ_i w_i J_i(θ*)ᵀ e_i

    The old model was at an optimum: at θ* the pull of these labels is balanced by that of all other data. Linear
    models, whose J does not move, need none of this.

    Args:
        balance: g, the pull at θ*.
    """

    balance: Tree

    @classmethod
    def at(
        cls, model: nn.Module, memory: Memory, likelihood: Likelihood, batch_size: int | None = None
    ) -> ResidualReplay:
        """The penalty around the weights that the model has now; the memory holds its predictions."""
        e = _residuals(memory, likelihood)
        balance = pulled_back(model, memory.inputs, memory.weights.to(e).unsqueeze(-1) * e, tuple(trainable(model)))
        return cls(memory, likelihood, snapshot(balance), batch_size=batch_size)

    def total(self, model: nn.Module) -> Tensor:
        there = dict(model.named_parameters())
        old = {
            name: there[name][tuple(map(slice, g.shape))] for name, g in self.balance.items()
        }  # a head may have grown
        pull = torch.stack([(g * old[name]).double().sum() for name, g in self.balance.items()]).sum()
        return super().total(model).double() - pull

    def each(self, f: Tensor, rows: Tensor | None) -> Tensor:
        e = take(_residuals(self.memory, self.likelihood), rows).to(f)
        return (f[..., : e.shape[-1]] * e).sum(-1)


def pulled_back(model: nn.Module, inputs: Inputs, e: Tensor, names: tuple[str, ...], chunk: int = 1024) -> Tree:
    """Σ J_iᵀe_i at the model's weights, in evaluation mode."""
    p = next(model.parameters())
    total: Tree = {}
    with evaluating(model):
        for rows in torch.arange(len(e)).split(chunk):
            v = e[rows.to(e.device)].to(p)
            found = pullback(model, move(take(inputs, rows), p.device), v, names)
            total = found if not total else {name: g + found[name] for name, g in total.items()}
    return total


def _residuals(memory: Memory, likelihood: Likelihood) -> Tensor:
    return likelihood.residual(predictions_of(memory), memory.targets)


def predictions_of(memory: Memory) -> Tensor:
    """The old model's outputs, or an error where the memory has none."""
    if memory.predictions is None:
        raise expected("memory", "the old model's predictions (`remember` adds them)", "none")
    return memory.predictions
