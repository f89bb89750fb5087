"""How long to train: as long as predictions out of fold improve, or the usual number of epochs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import Tensor, nn

from posterity.batches import Batches
from posterity.errors import require
from posterity.learning.folds import FOLDS, OutOfFold, out_of_fold
from posterity.learning.objective import Objective

if TYPE_CHECKING:
    from posterity.learning.settings import FitSettings

FEWEST_EPOCHS, FEWEST_STEPS = 20, 2000  # what training gets for a user who does not say how long
AUTO = "auto"
# Steps of the final training for each of a fold's. IVON's was measured. For the others it makes the sum of all learning
# rates that of the folds, which learn twice as fast and without a schedule that halves the rate on average.
STRETCH, STRETCH_OF_OTHERS = {"ivon": 2.0}, 4.0


def usual_epochs(steps_per_epoch: int) -> int:
    """Epochs of a training whose length was not given."""
    return max(FEWEST_EPOCHS, -(-FEWEST_STEPS // steps_per_epoch))


def stretch(method: str) -> float:
    """Steps of the final training for each step of a fold."""
    return STRETCH.get(method, STRETCH_OF_OTHERS)


def best_epochs(found: OutOfFold | None, steps_per_epoch: int, stretched: float, folds: int = FOLDS) -> int:
    """Epochs of the final training: those of the folds on more data, or the usual number where none memorised."""
    usual = usual_epochs(steps_per_epoch)
    if found is None or not found.memorises:
        return usual
    steps = stretched * found.steps * folds / (folds - 1)
    return min(usual, max(1, round(steps / steps_per_epoch)))


def searched_epochs(
    model: nn.Module, data: Batches, objective: Objective, settings: FitSettings, steps_per_epoch: int
) -> int:
    """Epochs by cross-validation of copies of a model, which go on from the weights it has."""
    columns = data.source if isinstance(data.source, tuple) else ()
    fits = len(columns) >= 2 and isinstance(columns[0], Tensor) and data.n >= FOLDS
    require(fits, f"epochs={AUTO!r}", f"(inputs, targets) as tensors, of at least {FOLDS} examples", "other data")
    device = next(model.parameters()).device
    copies = [copy.deepcopy(model) for _ in range(FOLDS)]
    found = out_of_fold(
        copies,
        columns[0].to(device),
        columns[1].to(device),
        objective.likelihood,
        batch_size=settings.batch_size,
        seed=settings.seed,
        progress=settings.progress,
    )
    return best_epochs(found, steps_per_epoch, stretch(settings.method))
