"""What kernels store of a run of `Variational`: the numbers of its meter in one vector on the device.

The tensors of a `Meter` are views of that vector while kernels move it, so that every read returns the newest values.
Counts of the host are its own guess, since a step may have been skipped or replayed without it; `catch_up` corrects it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.optim import _meter
from posterity.optim._meter import MEASURED, Meter
from posterity.optim.kernels._contract import Course
from posterity.optim.kernels._pointer_table import Uploaded

PRICE = ("ess", "paid", "per_ess", "last")
COUNTS = ("steps", "measured", "peak", "batch")  # that the host has too
METER = (*PRICE, *MEASURED, *COUNTS, "clip", "due", "drawn", "next", "examples")
CONSTANTS = ("n", "budget", "total_steps", "known", "share", "given", "refresh", "watched", "follows")


class MeterTable:
    """The meter of a run on a device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.numbers = torch.zeros(len(METER), dtype=torch.float32, device=device)
        self.constants = Uploaded(torch.zeros(len(CONSTANTS), dtype=torch.float32, device=device))
        self._views = dict(zip(METER, self.numbers.unbind(), strict=True))
        self._counts = Uploaded(self.numbers[len(PRICE) + len(MEASURED) :][: len(COUNTS)])
        self._known: list[Any] = []  # what the device was told about the counts, and has counted since
        self._meter: Meter | None = None

    def follow(self, course: Course) -> None:
        """Copy the host's changes to the device."""
        meter, price = course.meter, course.meter.price
        self._meter = meter
        for owner, names in ((price, PRICE), (meter, MEASURED)):
            for name in names:
                view, found = self._views[name], getattr(owner, name)
                if found is not view:
                    view.copy_(torch.as_tensor(found))
                    setattr(owner, name, view)
        counts = [float(getattr(meter, name)) for name in COUNTS]
        if counts != self._known:
            self._counts.set(counts)
            self._known = counts
        length = float(meter.total_steps or 0)
        flags = [float(course.given), float(_meter.REFRESH), float(meter.watched), float(meter.follows)]
        self.constants.set([price.n, price.budget, length, float(meter.known), course.share, *flags])

    def stepped(self, course: Course) -> None:
        """The device has taken a step, for all that the host knows."""
        meter, rates = course.meter, [lr for lr in course.rates if not isinstance(lr, Tensor)]
        meter.steps, meter.measured = meter.steps + 1, meter.measured + 1
        meter.peak = max([meter.peak, *map(float, rates)])
        meter.progress(max(map(float, rates), default=meter.peak))
        self._known = [float(getattr(meter, name)) for name in COUNTS]

    def catch_up(self) -> None:
        """Wait for the device, and let the host have its counts, unless it has counted on by itself since."""
        if self._meter is None or self._known != [float(getattr(self._meter, name)) for name in COUNTS]:
            return
        steps, measured, peak, batch = (float(self._views[name]) for name in COUNTS)
        meter = self._meter
        meter.steps, meter.measured, meter.peak, meter.batch = int(steps), int(measured), peak, batch
        self._known = [steps, measured, peak, batch]
