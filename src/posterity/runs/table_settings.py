"""How the network of a table is trained where nobody says.

Chosen on tables of other studies than those that are reported (`benchmarks/tables.py` names both): with this learning
rate and batch, AdamW's noise keeps members apart, and the folds of cross-validation learn as the run itself does.
"""

from __future__ import annotations

LR = 6e-3  # of AdamW
BATCH, LARGEST = 128, 1024  # examples a step
STEPS = 512  # of an epoch, beyond which a table takes larger batches
STRETCH = 2.0  # steps for each of a fold's: the schedule halves the learning rate on average
PRIOR, FEW = 1.0, 1000  # precision of the prior on every weight, and the rows below which it is less in proportion


def usual_batch(rows: int) -> int:
    """Examples a step of a table: the smallest power of two that makes an epoch of at most 512 steps, in 128 ... 1024.

    Examples:
        >>> [usual_batch(rows) for rows in (150, 39_000, 200_000, 1_000_000)]
        [128, 128, 512, 1024]
    """
    size = BATCH
    while size < LARGEST and rows > STEPS * size:
        size *= 2
    return size


def usual_prior(rows: int) -> float:
    """Precision of the prior: it keeps wrong labels from being memorised, and costs nothing where all are right.

    Examples:
        >>> [usual_prior(rows) for rows in (150, 39_000)]
        [0.15, 1.0]
    """
    return PRIOR * min(1.0, rows / FEW)
