"""How many examples a step takes where nobody says."""

from __future__ import annotations

USUAL, LARGEST = 64, 1024
STEPS = 1024  # of an epoch, beyond which a table takes larger batches


def usual_batch(rows: int) -> int:
    """Examples a step of a table: the smallest power of two that makes an epoch of at most 1024 steps, in 64 ... 1024.

    Examples:
        >>> [usual_batch(rows) for rows in (150, 39_000, 200_000, 1_000_000)]
        [64, 64, 256, 1024]
    """
    size = USUAL
    while size < LARGEST and rows > STEPS * size:
        size *= 2
    return size
