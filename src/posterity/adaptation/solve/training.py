"""What every training of an adapted network shares: its settings, its optimizer, the memory it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from posterity.adaptation.past import Past, joined
from posterity.adaptation.problem import AdaptationProblem
from posterity.errors import require_positive, require_seed, require_whole
from posterity.noise import seeded
from posterity.posterior import Memory
from posterity.startup import put_off_compiler, step_of


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    Args:
        epochs: Passes over the data; by default chosen from the size of the change.
        batch_size: Examples a step.
        lr: Learning rate of Adam, which falls to zero along a cosine.
        clip: Largest norm of the gradient of the mean loss.
        seed: Of everything random.
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    clip: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole("epochs", 1 if self.epochs is None else self.epochs)
        require_whole("batch_size", 1 if self.batch_size is None else self.batch_size)
        require_positive("lr", 1.0 if self.lr is None else self.lr)
        require_seed(self.seed)
        if self.clip is not None:
            require_positive("clip", self.clip)


class Adam:
    """Adam whose rate falls to zero along a cosine, in one kernel where there is one: it is most of a small step.

    Args:
        parameters: What learns.
        lr: The largest rate.
        clip: Largest norm of the gradient.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, clip: float | None = None) -> None:
        put_off_compiler()
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        self.parameters, self.lr, self.clip = parameters, lr, clip
        self.optimizer = torch.optim.Adam(parameters, lr=lr, fused=fused)
        self.take = step_of(self.optimizer)

    def begin(self, done: float) -> None:
        """Set the rate by the share of the steps that are done, and forget the last gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * done))
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Take a step by the gradients that there are."""
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.take()


def training_mode(model: nn.Module, statistics: bool = False) -> None:
    """Training mode, but for layers with running statistics: those of a few new examples would not be those of all."""
    model.train()
    for module in model.modules():
        if not statistics and getattr(module, "running_mean", None) is not None:
            module.eval()


def memory_after(problem: AdaptationProblem, past: Past, seed: int) -> Memory | None:
    """What is remembered afterwards: as large a share of the new data as of the old."""
    added, model = problem.change.added, problem.new
    memory = past.remembered(model)
    if added is None or past.memory is None:
        return memory
    share = len(past.memory) / max(problem.posterior.n - problem.change.gone, 1)
    count = min(len(added), max(1, round(share * len(added))))
    weights = torch.full((count,), len(added) / count)
    chosen = torch.randperm(len(added), generator=seeded(seed))[:count]
    return joined(memory, model, added.take(chosen), weights)
