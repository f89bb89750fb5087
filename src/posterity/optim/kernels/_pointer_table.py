"""The table that fused kernels work from: the address of each tensor of each parameter, nothing copied or flattened."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.errors import expected
from posterity.noise import HALF
from posterity.optim.kernels._pieces import Views
from posterity.trees import state_dtype


class Coefficients(NamedTuple):
    """The numbers of a group's equations that fused kernels read, and which kernels those are."""

    ess: float
    delta: float
    rho1: float
    rho2: float
    bias: float
    log_beta1: float
    lr: float
    clip_radius: float
    batch_size: float
    squares: bool

    @property
    def values(self) -> tuple[float, ...]:
        """Those of `NUMBERS`, in this order."""
        return self[:-1]


TENSORS = ("p", "buffer", "momentum", "hessian", "prior_mean", "prior_precision", "linear", "quadratic")
SCALARS = ("step", "forgetting", "level", "scatter", "spread", "updates")
COLUMNS = (*TENSORS, *SCALARS, "size", "group", "index", "start", "inner", "outer")  # of a parameter: int64
NUMBERS = Coefficients._fields[:-1]  # of a group: float64
ADAM_NUMBERS = ("lr", "beta1", "beta2", "eps", "decay", "coupled")  # likewise, of Adam under `Variational`
FACTS = (*NUMBERS, "rate", "debias", "active", "factor", "", "", "still")  # of a tensor in this step: float32, 64 bytes
MARKS = ("seed", "sample", "draws", "skipped")  # of a group: int64; the last two are addresses of counters
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_dtype, _layout = operator.attrgetter("dtype"), operator.attrgetter("layout")  # faster over many tensors than a loop

Marks = tuple[int, int, Tensor, Tensor]
Tensors = Sequence[Tensor | None]


class Kind(NamedTuple):
    """What tensors of one launch have in common."""

    dtype: torch.dtype
    prior: bool
    term: bool
    squares: bool
    transposed: bool  # or a shard that does not begin with a block of noise
    aligned: bool


@dataclass(frozen=True)
class Entry:
    """One parameter: its tensors (see `TENSORS` and `SCALARS`), its group and its number among all parameters.

    Of a shard the tensors are the local ones, and `start` is the index of its first weight in the whole parameter.
    """

    tensors: Views
    group: int
    index: int
    squares: bool
    start: int = 0

    @cached_property
    def kind(self) -> Kind:
        names, p = self.tensors, self.tensors["p"]
        aligned = p.numel() % 4 == 0 and all(names[name].data_ptr() % 16 == 0 for name in TENSORS if name in names)
        prior, term = "prior_precision" in names, "quadratic" in names
        transposed = layout(p) != (1, p.numel()) or self.start % (2 * HALF) > 0
        return Kind(p.dtype, prior, term, self.squares, transposed, aligned)

    @property
    def row(self) -> list[int]:
        p = self.tensors["p"]
        addresses = [self.tensors[name].data_ptr() if name in self.tensors else 0 for name in (*TENSORS, *SCALARS)]
        return [*addresses, p.numel(), self.group, self.index, self.start, *(layout(p) or ())]

    def fitting(self, gradient: Tensor) -> Tensor:
        """The gradient, or a copy that is laid out as the parameter is."""
        p = self.tensors["p"]
        if self.kind.aligned and gradient.data_ptr() % 16:  # a part of something larger
            return torch.empty_like(p, requires_grad=False).copy_(gradient)
        return gradient if gradient.stride() == p.stride() and gradient.dtype == p.dtype else like(p, gradient)


class Launch(NamedTuple):
    """The tensors of one kind, and all their noise blocks as pairs (tensor, block)."""

    kind: Kind
    members: Tensor
    blocks: Tensor


class Table:
    """Addresses, numbers and results of the small kernels, on the device of the parameters.

    Args:
        entries: The parameters.
        marks: Of each group: see `MARKS`, with counters for their addresses.
        names: The numbers of each group.
    """

    def __init__(self, entries: Sequence[Entry], marks: Sequence[Marks], names: Sequence[str] = NUMBERS) -> None:
        self.entries, self.names = entries, tuple(names)
        self.device = device = entries[0].tensors["p"].device
        self.counters = [t for _, _, *counters in marks for t in counters]  # kept alive with their addresses
        self.table = torch.tensor([entry.row for entry in entries], dtype=torch.int64, device=device)
        matrices = [entry.tensors["p"].ndim >= 2 for entry in entries]
        self.matrices = torch.tensor(matrices, dtype=torch.int32, device=device)
        rows = [[_int64(seed), sample, draws.data_ptr(), skipped.data_ptr()] for seed, sample, draws, skipped in marks]
        self.marks = torch.tensor(rows, dtype=torch.int64, device=device)
        self.keys = torch.zeros(len(entries), 4, dtype=torch.int32, device=device)
        self.flags = torch.zeros(2, dtype=torch.int32, device=device)
        self.gradients = Uploaded(torch.zeros(len(entries), dtype=torch.int64, device=device))
        self.products = Uploaded(torch.zeros(len(entries), dtype=torch.int64, device=device))
        self.numbers = Uploaded(torch.zeros(len(marks), len(names), dtype=torch.float64, device=device))
        self.launches = list(_launches(entries, device))
        self._looks: list[Any] = []  # of the gradients of the last step
        self._copies: list[Tensor | None] = []  # of some of them
        self._at: list[int] = []

    def set_numbers(self, numbers: list[list[float]]) -> None:
        """Take the numbers of each group, in the order of their names."""
        self.numbers.set(numbers)

    def scale_lr(self, group: int, lr: Tensor) -> None:
        """Multiply the learning rate of a group with a tensor, which may be on the device."""
        self.numbers.multiply((group, self.names.index("lr")), lr)

    def set_gradients(self, gradients: Tensors, products: Tensors = ()) -> None:
        """Point to the gradients, of which one of another layout or type is copied first, and to products with them.

        Args:
            gradients: Of each entry.
            products: Sums of noise times gradient, if any: float32, and laid out as the parameters are.
        """
        there = [g for g in gradients if g is not None]
        require_dense(*there)
        missing = len(there) < len(gradients) and [g is None for g in gradients]
        looks = [missing, *map(_dtype, there), *map(Tensor.data_ptr, there), *map(Tensor.stride, there)]
        if looks != self._looks or self._copies:
            pairs = zip(self.entries, gradients, strict=True)
            found = [None if g is None else entry.fitting(g) for entry, g in pairs]
            self._copies = [mine for mine, g in zip(found, gradients, strict=True) if mine is not g]
            self._looks, self._at = looks, [0 if g is None else g.data_ptr() for g in found]
        self.gradients.set(self._at)
        if products:
            self.products.set([0 if t is None else t.data_ptr() for t in products])


class Uploaded:
    """A small tensor on a device that follows values on the host without waiting, also in a CUDA graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._values: list[Any] = []
        self._captured: list[Tensor] = []  # graphs read from here whenever they are replayed, which nobody says
        self._spare = self._host()
        self._here = tensor.numpy() if tensor.device.type == "cpu" else None  # a view, which takes lists quickly
        self._multiplied = False

    def _host(self) -> Tensor:
        return torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=self.tensor.is_cuda)

    def set(self, values: list[Any]) -> None:
        """Send the values if they are new."""
        if values == self._values and not self._multiplied and not self._captured:
            return
        self._multiplied = False
        self._values = values
        if self._here is not None:
            self._here[...] = values
            return
        host = self._spare
        host.copy_(torch.tensor(values, dtype=host.dtype).view(host.shape))
        self.tensor.copy_(host, non_blocking=True)
        if self.tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured.append(host)
        elif self.tensor.is_cuda:
            self._spare = self._host()  # the allocator keeps the old one until the copy is done

    def multiply(self, place: tuple[int, ...], factor: Tensor) -> None:
        """Multiply one value, until values are set again."""
        self.tensor[place].mul_(factor.reshape(()).to(self.tensor.device, non_blocking=True))
        self._multiplied = True


def layout(p: Tensor) -> tuple[int, int] | None:
    """How memory is ordered: (1, n) for row-major, (inner, outer) where matrices are transposed, None otherwise.

    Channels-last tensors are transposed from (channels, positions) to (positions, channels) for each example.
    """
    if p.is_contiguous():
        return 1, p.numel()
    if p.ndim == 2 and p.t().is_contiguous():
        return p.shape[0], p.shape[1]
    if p.ndim >= 3 and p.movedim(1, -1).is_contiguous():
        return p.shape[1], p.numel() // (p.shape[0] * p.shape[1])
    return None


def supported(p: Tensor) -> bool:
    """Whether the kernels can work on a parameter."""
    plain = type(p.data) is Tensor and p.dtype in DTYPES and p.numel() > 0
    return plain and layout(p) is not None and p.data_ptr() % p.element_size() == 0


def laid_out(state: Mapping[str, Tensor], p: Tensor) -> Views:
    """The state of a parameter, all of it as kernels expect it: float32, and ordered in memory as the parameter is."""
    dtype = state_dtype(p.dtype)
    return {name: like(p, t, dtype) if t.shape == p.shape else t.to(p.device, dtype) for name, t in state.items()}


def like(p: Tensor, t: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor, or a copy that is ordered in memory as the parameter is, and of its type unless another is given."""
    if layout(t) == layout(p) and t.dtype == (dtype or p.dtype) and t.device == p.device:
        return t
    return torch.empty_like(p, dtype=dtype, requires_grad=False).copy_(t)


def require_dense(*gradients: Tensor | None) -> None:
    """Raise unless all gradients that there are are ordinary tensors."""
    for found in {*map(_layout, (g for g in gradients if g is not None))} - {torch.strided}:
        raise expected("gradient", "a dense tensor; sparse gradients are not supported", found)


def _launches(entries: Sequence[Entry], device: torch.device) -> Sequence[Launch]:
    kinds: dict[Kind, list[int]] = {}
    for t, entry in enumerate(entries):
        if entry.tensors["p"].numel():  # a shard may have nothing here
            kinds.setdefault(entry.kind, []).append(t)
    launches = []
    for kind, numbers in kinds.items():
        members = torch.tensor(numbers, dtype=torch.int32)
        counts = torch.tensor([-(-entries[t].tensors["p"].numel() // (2 * HALF)) for t in numbers])
        first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        pairs = torch.stack([members.repeat_interleave(counts), torch.arange(int(counts.sum())) - first], dim=1)
        launches.append(Launch(kind, members.to(device), pairs.to(device, torch.int32)))
    return launches


def _int64(number: int) -> int:
    return ((int(number) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
