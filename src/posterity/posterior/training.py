"""How a posterior was trained: what a later training that follows its example needs."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from posterity.errors import require_positive, require_whole


class Training(NamedTuple):
    """How long and how fast a model was trained.

    Args:
        epochs: Passes over the data.
        batch_size: Examples a step.
        lr: Largest learning rate of Adam, or None for other optimizers.
    """

    epochs: float
    batch_size: int
    lr: float | None

    @classmethod
    def read(cls, content: Any) -> Self | None:
        """What a file holds; nothing where it holds nothing."""
        if content is None:
            return None
        found = cls(**content)
        require_positive("epochs", found.epochs)
        require_whole("batch_size", found.batch_size)
        require_positive("lr", 1.0 if found.lr is None else found.lr)
        return found
