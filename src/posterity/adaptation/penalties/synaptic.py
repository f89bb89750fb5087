"""Synaptic intelligence: how much each weight contributed to lowering the loss, measured along the path of training.

ω_j = −∫ g_j dθ_j,    Ω_j ← Ω_j + ω_j / ((θ_j − θ_j⁰)² + ξ),    penalty  ½ · 2c Σ_j Ω_j (θ_j − θ*_j)²

g is the gradient of the task loss alone, per example: the total is N times it.
"""

from __future__ import annotations

import torch
from torch import nn

from posterity.adaptation.penalties.quadratic import Quadratic, product
from posterity.errors import require_positive
from posterity.learning import Callback, Moment
from posterity.posterior import Diagonal
from posterity.trees import Tree, snapshot, trainable


class SynapticIntelligence(Callback):
    """Watches training, as a callback of `po.fit`, and becomes a penalty when a task is done.

        watch = SynapticIntelligence(model)
        for task in tasks:
            run = po.fit(model, task, penalty=watch.penalty(n, strength), callbacks=[watch])
            watch.consolidate(model)

    Args:
        model: The model before its first task.
        damping: ξ.

    References:
        Zenke, Poole and Ganguli, "Continual learning through synaptic intelligence", 2017.
    """

    def __init__(self, model: nn.Module, damping: float = 0.1) -> None:
        require_positive("damping", damping)
        self.damping = damping
        self.importance: Tree = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
        self.anchor = snapshot(trainable(model))
        self.path: Tree = {name: torch.zeros_like(p) for name, p in self.anchor.items()}
        self.last = snapshot(self.anchor)
        self.current = self.penalty(1)

    def penalty(self, n: int, strength: float = 1.0) -> Quadratic:
        """c Σ Ω (θ − θ*)², for the next task, whose loss is a mean over n examples."""
        precision = {name: 2.0 * strength * omega for name, omega in self.importance.items()}
        self.current = Quadratic(Diagonal(self.anchor, precision), n=n)
        return self.current

    def step(self, moment: Moment) -> None:
        """Add −g Δθ of the step that was just taken."""
        self.observe(moment.model)

    @torch.no_grad()
    def observe(self, model: nn.Module) -> None:
        """The same in your own training loop: called after each optimizer step, before gradients are cleared."""
        away = {name: t - self.anchor[name] for name, t in self.last.items()}
        pull = product(self.current.gaussian, away)
        for name, p in trainable(model).items():
            if p.grad is not None:
                self.path[name] -= (p.grad - pull[name] / self.current.n) * (p - self.last[name])
            self.last[name] = p.detach().clone()

    @torch.no_grad()
    def consolidate(self, model: nn.Module) -> None:
        """The task is done: importance in units of a loss summed over its n examples, and a new anchor."""
        for name, p in trainable(model).items():
            moved = (p - self.anchor[name]).square() + self.damping
            self.importance[name] += self.current.n * (self.path[name] / moved).clamp_min(0)
            self.path[name] = torch.zeros_like(p)
        self.anchor = snapshot(trainable(model))
        self.last = snapshot(self.anchor)
