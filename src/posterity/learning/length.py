"""How long to train: as long as predictions out of fold improve, or the usual number of epochs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import Tensor, nn

from posterity.batches import Batches
from posterity.errors import require
from posterity.learning.committee import stacks
from posterity.learning.folds import FOLDS, LR, OutOfFold, out_of_fold
from posterity.learning.objective import Objective

if TYPE_CHECKING:
    from posterity.learning.settings import FitSettings

FEWEST_EPOCHS, FEWEST_STEPS = 20, 2000  # what training gets for a user who does not say how long
AUTO = "auto"
FEWEST, MOST = 20, 10_000  # examples between which a perceptron's length is searched without being asked for
ADAMW = ("variational", "adamw", "laplace", "dropout")  # methods that take its steps
SEARCHED = ("variational", "ivon", "adamw", "laplace")  # methods whose length the folds know
# Steps of the final training for each of a fold's. IVON's was measured. For the others it makes the sum of all learning
# rates that of the folds, which have no schedule that halves the rate on average: 4 at the usual rate of 1e-3.
STRETCH, STRETCH_OF_OTHERS = {"ivon": 2.0}, 4.0


def usual_epochs(steps_per_epoch: int) -> int:
    """Epochs of a training whose length was not given."""
    return max(FEWEST_EPOCHS, -(-FEWEST_STEPS // steps_per_epoch))


def stretch(method: str, lr: float | None = None) -> float:
    """Steps of the final training for each step of a fold; of those that take AdamW's steps by their learning rate."""
    return 2 * LR / lr if method in ADAMW and lr else STRETCH.get(method, STRETCH_OF_OTHERS)


def best_epochs(
    found: OutOfFold | None, steps_per_epoch: int, stretched: float, folds: int = FOLDS, late: bool = False
) -> int:
    """Epochs of the final training: those of the folds on more data, or the usual number where none memorised.

    Args:
        found: What the folds have found.
        steps_per_epoch: Of the final training.
        stretched: Its steps for each of a fold's; see `stretch`.
        folds: Number of folds.
        late: Whether to train as long as the folds were about as good as at their best: noise in the weights keeps the
            final training from memorising, which the folds had nothing against (`benchmarks/budgets.py`).
    """
    usual = usual_epochs(steps_per_epoch)
    if found is None or not found.memorises:
        return usual
    length = found.late if late and found.late is not None else found.steps
    steps = stretched * length * folds / (folds - 1)
    return min(usual, max(1, round(steps / steps_per_epoch)))


def cross_validates(model: nn.Module, data: Batches, settings: FitSettings) -> bool:
    """Whether cross-validation chooses the length."""
    return settings.epochs == AUTO or (settings.epochs is None and _cheap(model, data, settings))


def _cheap(model: nn.Module, data: Batches, settings: FitSettings) -> bool:
    """Whether cross-validation is quick, and about the very loss that is asked for."""
    columns = data.source if isinstance(data.source, tuple) else ()
    asked = ("penalty", "augment", "class_weights", "ignore_index", "amp", "checkpoint", "patience", "n")
    alone = all(getattr(settings, name) is None for name in asked) and settings.label_smoothing == 0
    known = settings.method in SEARCHED and "prior" not in settings.options
    few = len(columns) >= 2 and isinstance(columns[0], Tensor) and FEWEST <= data.n <= MOST
    return alone and known and few and stacks(model)


def searched_epochs(
    model: nn.Module, data: Batches, objective: Objective, settings: FitSettings, steps_per_epoch: int
) -> tuple[int, OutOfFold]:
    """Epochs by cross-validation of copies of a model, which go on from its weights, and what it has found."""
    columns = data.source if isinstance(data.source, tuple) else ()
    fits = len(columns) >= 2 and isinstance(columns[0], Tensor) and data.n >= FOLDS
    require(fits, f"epochs={AUTO!r}", f"(inputs, targets) as tensors, of at least {FOLDS} examples", "other data")
    device = next(model.parameters()).device
    lr = settings.learner_type().usual_lr(model) if settings.lr is None else settings.lr
    copies = [copy.deepcopy(model) for _ in range(FOLDS)]
    late = settings.method == "variational" and objective.likelihood.is_classification
    found = out_of_fold(
        copies,
        columns[0].to(device),
        columns[1].to(device),
        objective.likelihood,
        batch_size=settings.batch_size,
        thorough=late,
        parts=settings.folds,
        seed=settings.seed,
        progress=settings.progress,
    )
    return best_epochs(found, steps_per_epoch, stretch(settings.method, lr), late=late), found
