"""The places where a model keeps its parameters and buffers, and other tensors in them for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

Place = tuple[dict[str, Tensor | None], str]


class Slots:
    """Swaps tensors into a model without copying them, tied ones in all their places.

    The same as `torch.func.functional_call`, but the places are looked up once and not in every call, which is what
    many small calls spend their time on.
    """

    def __init__(self, model: nn.Module) -> None:
        names = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
        self._places: dict[str, list[Place]] = {name: [] for name in names.values()}
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for key, t in tensors.items():
                    if t is not None:
                        self._places[names[id(t)]].append((tensors, key))  # type: ignore[arg-type]

    @contextmanager
    def filled(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with these tensors by name, and afterwards with what was there before, also after an error."""
        places = [(place, key, t) for name, t in tensors.items() for place, key in self._places[name]]
        before = [place[key] for place, key, _ in places]
        try:
            for place, key, t in places:
                place[key] = t
            yield
        finally:
            for (place, key, _), old in zip(places, before, strict=True):
                place[key] = old
