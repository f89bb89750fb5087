"""Many processes: shards seen as the part that is here, and sums that the replicas of a model share.

A sharded parameter (a DTensor of `fully_shard`) is worked on through its local rows; its noise belongs to the global
index of each weight, so that it does not depend on the number of processes. Replicated parameters get their averaged
gradients from DistributedDataParallel; what is stored beside them, products of noise and gradient, is averaged here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from posterity.errors import expected, require

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Noise = Literal["shared", "per_rank"]
SHARDS = "torch.distributed.tensor"  # the module of shards
MESSAGE = 1 << 23  # numbers that are averaged in one message


def sharded(t: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a shard; there are none before torch's module is loaded, and loading it takes a second."""
    module = sys.modules.get(SHARDS)
    return module is not None and isinstance(t, module.DTensor)


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`local` of many tensors at once, which is faster than one by one."""
    tensors = list(tensors)
    return [local(t) for t in tensors] if any_sharded(tensors) else tensors


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether some tensors are shards; it asks for each type once."""
    module = sys.modules.get(SHARDS)
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors)))


def local(t: Tensor) -> Tensor:
    """The part of a tensor that is here: the same storage, and the tensor itself unless it is sharded."""
    return t._local_tensor if sharded(t) else t


def whole(t: Tensor) -> Tensor:
    """All of a tensor, on the CPU if it has to be collected (by every process at once)."""
    return t.full_tensor().cpu() if sharded(t) else t


def over_shards(t: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """Sums over the weights of parameters, from those of this process; all of these are shards, or none."""
    shards = next((p for p in parameters if sharded(p)), None)
    return t if shards is None else summed(t, shards)


def home(t: Tensor) -> torch.device:
    """Where `whole` puts a tensor."""
    return torch.device("cpu") if sharded(t) else t.device


def placed_as(t: Tensor, p: Tensor) -> Tensor:
    """A whole tensor, the same on every process, sharded as a parameter is."""
    if not sharded(p):
        return t
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t, p.device_mesh, p.placements, src_data_rank=None)


def first_index(p: Tensor) -> int:
    """The index of its first local weight in the whole parameter."""
    return _first_row(p.shape, p.device_mesh, p.placements) * (p.numel() // p.shape[0]) if sharded(p) else 0


@lru_cache(maxsize=4096)
def _first_row(shape: torch.Size, mesh: Any, placements: tuple[Any, ...]) -> int:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    rows = all(type(p) is Replicate or (type(p) is Shard and p.dim == 0) for p in placements)
    require(rows, "placement of a sharded parameter", "rows, as fully_shard gives them", placements)
    return int(compute_local_shape_and_global_offset(shape, mesh, placements)[1][0])


def every(t: Tensor, p: Tensor, stride: int) -> Tensor:
    """Those entries of a local tensor whose global index is a multiple of the stride, flat."""
    return t.reshape(-1)[-first_index(p) % stride :: stride]


def summed(t: Tensor, p: Tensor) -> Tensor:
    """Add up a tensor, in place, over the processes that hold different parts of a parameter."""
    if sharded(p):
        for dim, placement in enumerate(p.placements):
            if placement.is_shard():
                dist.all_reduce(t, group=p.device_mesh.get_group(dim))
    return t


def on_all(fine: Tensor, parameters: Iterable[Tensor]) -> bool:
    """Whether something holds here and wherever else parts of the parameters are: no process skips a step alone."""
    meshes = {p.device_mesh: p for p in parameters if sharded(p)}
    wrong = (~fine).to(torch.float32)
    for p in meshes.values():
        wrong = summed(wrong.to(local(p).device), p)
    return not bool(wrong)


@dataclass(frozen=True)
class Replicas:
    """The processes that hold the same parameters and see different data.

    Args:
        noise: "shared" for the same noise on all of them, "per_rank" for a sample on each.
        group: Their process group; all processes by default.
    """

    noise: Noise = "shared"
    group: Any = None

    def __post_init__(self) -> None:
        require(self.noise in ("shared", "per_rank"), "noise", "'shared' or 'per_rank'", self.noise)

    def __deepcopy__(self, memo: object) -> Replicas:
        return self  # a process group cannot be copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Replicas, (self.noise,)

    @property
    def per_rank(self) -> bool:
        """Whether each process draws its own samples."""
        return self.noise == "per_rank"

    @property
    def count(self) -> int:
        """How many there are; 1 unless torch.distributed is in use."""
        return dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        """The number of the samples that are drawn here."""
        return dist.get_rank(self.group) if self.per_rank and self.count > 1 else 0

    def average(self, tensors: list[Tensor]) -> None:
        """Average tensors over the replicas, in place."""
        for message in _messages(tensors):
            self._average(message)

    def _average(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat, group=self.group)
        flat.div_(self.count)
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(part.view(t.shape))

    def require_equal_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Raise unless the gradients of the parameters are the same everywhere."""
        found = [p.grad for p in parameters if p.grad is not None]
        if not found:
            return
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64).to(found[0].device) for g in found]
        norm = torch.stack(norms).norm()
        extremes = torch.stack([norm, -norm])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        largest, smallest = extremes[0].item(), -extremes[1].item()
        if largest - smallest > 1e-3 * largest:
            raise expected(
                "gradients",
                "the same on all processes (DistributedDataParallel), or a process_group for each model of its own",
                f"norms from {smallest:.3g} to {largest:.3g}",
            )


def _messages(tensors: list[Tensor]) -> Iterable[list[Tensor]]:
    """Consecutive tensors of one dtype and device, as many as fit a message."""
    message: list[Tensor] = []
    for t in tensors:
        fits = sum(u.numel() for u in message) + t.numel() <= MESSAGE
        if message and not (fits and message[0].dtype == t.dtype and message[0].device == t.device):
            yield message
            message = []
        message.append(t)
    if message:
        yield message
