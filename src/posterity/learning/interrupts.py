"""Ctrl-C at a step boundary: the first one asks the loop to stop, the second one stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a stop was requested."""

    requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: remember the first, raise on the second."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Turn Ctrl-C into a request that the loop reads between steps, where every state is whole.

    Python delivers signals to the main thread only; in any other thread nothing needs to be handled.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
