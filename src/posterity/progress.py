"""Progress of every long loop: a bar on a terminal, a line every few seconds everywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sized
from typing import TypeVar

T = TypeVar("T")
FIRST, PAUSE = 5.0, 10.0  # seconds before the first line of a log, and between two of them


class Lines:
    """Progress as lines on standard error, for logs and pipes.

    Args:
        label: What is going on, in a word or two.
        total: How many steps there are, where that is known.
    """

    def __init__(self, label: str, total: int | None) -> None:
        self.label, self.total = label, total
        self.started = time.monotonic()
        self.due = self.started + FIRST
        self.first: int | None = None  # what was done when we first looked

    def tell(self, done: int, note: str | Callable[[], str] = "") -> None:
        """Print a line, if it is time for one."""
        now = time.monotonic()
        if self.first is None:  # the first step also loads libraries: the time left follows from the others
            self.first, self.started = done, now
        if now < self.due:
            return
        self.due = now + PAUSE
        words = f"{self.label}: {done}" if self.total is None else f"{self.label}: {done} of {self.total}"
        if self.total is not None and done > self.first:
            left = (now - self.started) / (done - self.first) * (self.total - done)
            words += f", about {duration(left)} left"
        note = note() if callable(note) else note
        print(words + (f", {note}" if note else ""), file=sys.stderr, flush=True)


class Rate:
    """How many examples are processed a second.

    Args:
        done: Examples processed so far, to be kept up to date; those of the beginning do not count.
    """

    def __init__(self, done: float = 0) -> None:
        self.done = self.first = done
        self.started = time.monotonic()

    def words(self) -> str:
        """The rate in words, since the beginning."""
        return per_second((self.done - self.first) / max(time.monotonic() - self.started, 1e-9))


def per_second(rate: float) -> str:
    """A rate in words, with as many digits as anybody compares.

    Examples:
        >>> per_second(7.43), per_second(12_345), per_second(2_345_678)
        ('7.4 examples/s', '12,300 examples/s', '2,350,000 examples/s')
    """
    digits = 2 - math.floor(math.log10(rate)) if rate >= 100 else 1
    return f"{round(rate, digits):,.{max(digits, 0)}f} examples/s"


def duration(seconds: float) -> str:
    """A duration in words.

    Examples:
        >>> duration(7.4), duration(90), duration(7300)
        ('7 s', '2 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def track(
    items: Iterable[T],
    label: str,
    total: int | None = None,
    show: bool | None = None,
    note: Callable[[], str] | None = None,
) -> Generator[T, None, None]:
    """Iterate with a progress bar.

    Args:
        items: What to iterate over.
        label: What is going on, in a word or two.
        total: Number of items, where `items` has no length.
        show: True for a bar, False for nothing; by default a bar where standard error is a terminal, and lines
            elsewhere once the loop has taken some seconds.
        note: A message after each item, such as the bound that has been reached.

    Yields:
        The items, unchanged.
    """
    if show is None and not sys.stderr.isatty():
        lines = Lines(label, _length(items) if total is None else total)
        for done, item in enumerate(items, 1):
            yield item
            lines.tell(done, "" if note is None else note)
        return
    if show is False:
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), *Progress.get_default_columns()[:3], TimeRemainingColumn())
    bar = Progress(
        *columns,
        console=Console(stderr=True, force_terminal=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what is printed meanwhile into a pipe or a file belongs there
    )
    with bar as progress:
        if note is None:
            yield from progress.track(items, total=total, description=label)
            return
        task = progress.add_task(label, total=total)
        for item in items:
            yield item
            progress.update(task, advance=1, description=f"{label}, {note()}")


def _length(items: Iterable[object]) -> int | None:
    """The number of items, where it is known; what wraps a generator has a length by name only."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:
        return None
