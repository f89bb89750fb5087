"""How the network of a table is trained by default.

Chosen on tables of other studies than those that are reported (`benchmarks/tables.py` names both): with this learning
rate and batch, AdamW's noise keeps members apart, and the folds of cross-validation learn as the run itself does.
"""

from __future__ import annotations

from posterity.learning.schedules import LinearThenConstant

LR, LR_OF_CORRECTIONS = 6e-3, 2e-3  # of AdamW, for a network and for one that corrects a linear model
BATCH, LARGEST = 128, 1024  # examples a step
STEPS = 256  # of an epoch, beyond which a table takes larger batches
# From so many rows on one wide network learns more than members do that share one: diamonds .57, not .70.
LONG, WIDE = 10_000, (128, 128)
LONGEST_FOLD = 1500  # steps of the folds of such a table, whose weights are averaged
STRETCH = 2.0  # steps for each of a fold's: the schedule halves the learning rate on average
# Where a long table is memorised, the rate falls in the second half alone, which ends near the average of the last
# weights that its folds are judged by. A cosine of the same sum takes more steps, and memorises (Adult .286, not .283).
LATE_FALL, STRETCH_OF_LONG = LinearThenConstant(0.5, 1.0, 0.0), 4 / 3
FEWEST_STEPS = 200  # of a linear model that is corrected
MOST_STEPS = 20_000  # of a table that no fold memorises: about five minutes of one core, however many rows there are
DECAY, MANY = 1.0, 1000  # weight decay, and the rows beyond which it is less in proportion, as a prior counts less


def usual_batch(rows: int) -> int:
    """Examples a step of a table: at most a power of two in 128 ... 1024 that makes an epoch of about 256 steps.

    All batches of an epoch are of one size but for a few rows. With 128 and 5 rows of 133, every other step would learn
    next to nothing, and the length that cross-validation finds would be half of what is needed.

    Examples:
        >>> [usual_batch(rows) for rows in (100, 133, 39_000, 200_000, 1_000_000)]
        [100, 67, 255, 1021, 1024]
    """
    size = BATCH
    while size < LARGEST and rows > STEPS * size:
        size *= 2
    batches = -(-rows // size)
    return -(-rows // batches)


def usual_decay(rows: int) -> float:
    """AdamW's weight decay for a table: it keeps wrong labels of small ones from being memorised.

    Examples:
        >>> [usual_decay(rows) for rows in (150, 40_000)]
        [1.0, 0.025]
    """
    return DECAY * min(1.0, MANY / rows)


def bounded(epochs: int, steps: int) -> int:
    """Epochs of so many steps each, as many of them as there is time for.

    Examples:
        >>> bounded(20, 782), bounded(20, 7813), bounded(20, 78_125)
        (20, 2, 1)
    """
    return max(1, min(epochs, MOST_STEPS // steps))
