"""Defaults for pretrained networks: small steps, and few passes over the data.

A usual learning rate of Adam moves each weight by several times its size in a training of usual length. Weights that
hold what a network has learnt before would be lost. Adapters and new heads start from nothing and take larger steps.
The numbers were chosen on TREC with MiniLM (`benchmarks/fine_tuning.py`).
"""

from __future__ import annotations

from torch import nn

LR, LR_OF_PARTS = 1e-4, 1e-3  # of Adam, where most weights are trained, and where adapters or a head are
PART = 0.1  # of all weights, below which those that are trained count as adapters or a head
STEPS, FEWEST = 1000, 3  # steps and epochs at least
MOST = 20  # epochs where most weights are trained: few data are memorised soon
CLIP = 1.0  # largest norm of the gradient


def is_pretrained(model: nn.Module) -> bool:
    """Whether transformers has loaded the weights from somewhere, or most of them are frozen."""
    loaded = any(getattr(getattr(module, "config", None), "_name_or_path", "") for module in model.modules())
    return loaded or _trained_share(model) < 0.5


def usual_lr(model: nn.Module) -> float:
    """The learning rate of Adam for such a network."""
    return LR if _trained_share(model) >= PART else LR_OF_PARTS


def usual_epochs(model: nn.Module, steps_per_epoch: int) -> int:
    """Passes over the data for such a network; adapters and heads have a long way to go, on few data as on many.

    Examples:
        >>> whole, frozen = nn.Linear(2, 2), nn.Linear(400, 2).requires_grad_(False)
        >>> [usual_epochs(whole, steps) for steps in (2, 80, 1000)]
        [20, 13, 3]
        >>> [usual_epochs(nn.Sequential(frozen, whole), steps) for steps in (2, 80, 1000)]
        [500, 13, 3]
    """
    epochs = max(FEWEST, -(-STEPS // steps_per_epoch))
    return min(MOST, epochs) if _trained_share(model) >= PART else epochs


def _trained_share(model: nn.Module) -> float:
    """The share of all weights that are trained."""
    weights = list(model.parameters())
    return sum(p.numel() for p in weights if p.requires_grad) / max(1, sum(p.numel() for p in weights))
