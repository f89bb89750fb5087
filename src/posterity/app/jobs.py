"""Work that takes longer than a request: done in the background, one piece after another, asked about by number."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from posterity.errors import InvalidInput, PosterityError

WAITING = 8  # pieces of work at once, the one that runs included
KEPT = 64  # results that can still be asked for
Progress = Callable[[int, int], None]  # (done, in all)
_log = logging.getLogger("posterity.app")


@dataclass
class BackgroundJob:
    """One piece of work.

    Args:
        done: Steps done.
        total: Steps in all; 0 until that is known.
        result: What came out, when it is finished.
        error: Why nothing came out; empty unless it failed.
    """

    done: int = 0
    total: int = 0
    result: Any = None
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether no work is pending."""
        return self.result is not None or bool(self.error)


class Jobs:
    """Pieces of work by number."""

    def __init__(self) -> None:
        self._jobs: dict[int, BackgroundJob] = {}
        self._numbers, self._one_at_a_time = count(1), threading.Lock()

    def start(self, work: Callable[[Progress], Any]) -> int:
        """Begin a piece of work, as soon as those before it have ended; returns its number."""
        if sum(not job.ended for job in self._jobs.values()) >= WAITING:
            raise InvalidInput(f"measure: expected at most {WAITING} measurements at once, got another; wait for one")
        number, job = next(self._numbers), BackgroundJob()
        self._jobs[number] = job
        for old in [n for n, other in self._jobs.items() if other.ended][:-KEPT]:
            del self._jobs[old]
        threading.Thread(target=self._run, args=(job, work), daemon=True).start()
        return number

    def about(self, number: int) -> BackgroundJob:
        """How far a piece of work is."""
        if number not in self._jobs:
            raise InvalidInput(f"measure: expected the number of a measurement, got {number}")
        return self._jobs[number]

    def _run(self, job: BackgroundJob, work: Callable[[Progress], Any]) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total

        with self._one_at_a_time:
            try:
                job.result = work(progress)
            except PosterityError as why:
                job.error = str(why)
            except Exception as why:
                _log.error("a measurement failed", exc_info=why)
                job.error = "something went wrong; the terminal shows the error"
