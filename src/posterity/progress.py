"""One progress bar for every long loop: shown on a terminal, silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")


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
        show: True or False to force; by default a bar appears only when standard error is a terminal.
        note: What there is to say after each item, such as the bound that has been reached.

    Yields:
        The items, unchanged.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
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
