"""Work on the next pieces while earlier ones are written: a few threads, results in order, nothing piles up."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
WORKERS = min(4, os.cpu_count() or 1)


def prefetched(tasks: Iterable[Callable[[], T]], threads: int = WORKERS) -> Iterator[T]:
    """Results of tasks in their order; as many as there are threads, and one more, are under way at a time."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let every operation of torch run on the thread that calls it; pieces are too small to be cut again."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let the allocator keep the memory of pieces for the next ones.

    That of glibc hands large blocks back when they are freed, and each piece would be paged in anew; but it learns from
    the first that is freed to keep those that are no larger. This one is never touched and takes no memory.
    """
    torch.UntypedStorage(1 << 23)
