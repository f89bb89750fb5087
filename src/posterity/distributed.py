"""This process among others: each takes its part of a pass over data, and all come out with the whole result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from posterity.errors import require


class _Team(NamedTuple):
    """The processes that share passes over data."""

    group: Any
    rank: int
    size: int

    @property
    def device(self) -> torch.device:
        """Where their messages have to be."""
        nccl = dist.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


_ALONE = _Team(None, 0, 1)
_TEAM: ContextVar[_Team] = ContextVar("team", default=_ALONE)


@contextmanager
def sharded(group: Any = None) -> Iterator[None]:
    """Share every pass over data between processes, while the context is open.

    All of them call the same functions with the same model and the same data; each reads only its part of the
    batches, and each returns the result for all of the data: rows in the order of the data, sums over everything.
    That goes for `predict`, `laplace`, `log_marginal_likelihood`, Fisher and Gauss-Newton passes, `memory_map`,
    `leave_one_out` and `dual`. The data have to come in a fixed order, and in at least one batch for each process.

    Args:
        group: A process group of torch.distributed; all processes by default.

    Examples:
        >>> with sharded():  # without torch.distributed there is one process, and nothing to share
        ...     list(part(3))
        [0, 1, 2]
    """
    running = dist.is_available() and dist.is_initialized()
    team = _Team(group, dist.get_rank(group), dist.get_world_size(group)) if running else _ALONE
    token = _TEAM.set(team)
    try:
        yield
    finally:
        _TEAM.reset(token)


def alone() -> bool:
    """Whether passes over data are this process's own."""
    return _TEAM.get().size == 1


def part(batches: int) -> range:
    """The numbers of the batches that fall to this process: consecutive ones, so that gathering keeps the order."""
    team = _TEAM.get()
    wanted = f"at least one for each of {team.size} processes"
    require(batches >= team.size, "batches of data shared between processes", wanted, batches)
    return range(team.rank * batches // team.size, (team.rank + 1) * batches // team.size)


def gather(rows: Tensor, axis: int = 0) -> Tensor:
    """The rows of all processes, one part after the other."""
    team = _TEAM.get()
    if team.size == 1:
        return rows
    mine = rows.detach().movedim(axis, 0).to(team.device).contiguous()
    sizes = [torch.zeros((), dtype=torch.int64, device=team.device) for _ in range(team.size)]
    dist.all_gather(sizes, torch.tensor(len(mine), device=team.device), group=team.group)
    lengths = [int(size) for size in sizes]
    longest = max(lengths)
    padded = torch.cat([mine, mine.new_zeros(longest - len(mine), *mine.shape[1:])])
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=team.group)
    found = torch.cat([p[:n] for p, n in zip(parts, lengths, strict=True)])
    return found.movedim(0, axis).to(rows.device)


def total(t: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    return _reduced(t, dist.ReduceOp.SUM) if not alone() else t


def totals(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`total` of every tensor."""
    return {name: total(t) for name, t in tree.items()}


def largest(x: float) -> float:
    """The largest of a number over all processes."""
    return _reduced(torch.tensor(x, dtype=torch.float64), dist.ReduceOp.MAX).item() if not alone() else x


def _reduced(t: Tensor, operation: Any) -> Tensor:
    team = _TEAM.get()
    message = t.detach().to(team.device, copy=True).contiguous()
    dist.all_reduce(message, op=operation, group=team.group)
    return message.to(t.device)
