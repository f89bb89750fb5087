"""What else could have been done with the same data: retraining, and a plain warm start in the same time."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from posterity.adaptation.by_newton import retrained
from posterity.adaptation.situation import Situation
from posterity.adaptation.warm_start import BATCH, LARGE_RATE, Corrected, Schedule, descend, plain_warm_start
from posterity.errors import PosterityError
from posterity.learning.starts import reinitialised
from posterity.trees import only_trainable

EPOCHS, STEPS = 20, 2000  # of retraining, whichever is more: what `fit` takes unless told otherwise


def alternatives(situation: Situation, seconds: float, seed: int) -> tuple[dict[str, nn.Module], list[str]]:
    """Other models for the data as they are now, by name, and notes about those that could not be made.

    Args:
        situation: What was adapted; all data are at hand.
        seconds: Processor time that the adaptation took.
        seed: Of everything random.
    """
    whole = situation.all_data()
    assert whole is not None
    if situation.heads is not None:
        return {"retrained": retrained(situation, whole)}, []
    task = Corrected.of(situation)
    found = {}
    if not situation.other_model():
        start = situation.before()
        with only_trainable(start, situation.prior.names):
            found["plain warm start"] = plain_warm_start(start, task, seconds, seed)
    try:
        new = reinitialised(situation.new, seed, 1)
    except PosterityError as why:
        return found, [f"not retrained for comparison: {why}"]
    steps = max(STEPS, EPOCHS * -(-len(whole) // BATCH))
    with only_trainable(new, situation.prior.names):
        descend(new, replace(task, changed=0), Schedule(steps, LARGE_RATE, BATCH), seed)
    return found | {"retrained": new}, []
