"""What is asked: a model, a posterior, and how its predictive is to be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from posterity.errors import require
from posterity.inputs import Inputs
from posterity.likelihoods import Likelihood, classes_last
from posterity.posterior import Posterior
from posterity.prediction._running import OutputStatistics

Advance = Callable[[int], None]  # to be called with the number of steps done


class PredictiveMethod(NamedTuple):
    """A prediction method, ready for use."""

    ask: Callable[[Sequence[Inputs], Advance], list[OutputStatistics]]
    steps: int  # steps of one batch, for the progress bar


@dataclass(frozen=True)
class Question:
    """The settings of one call of `predict`."""

    model: nn.Module
    posterior: Posterior
    samples: int
    seed: int
    keep: bool
    class_axis: int | None

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""
        return self.posterior.likelihood

    @property
    def axis(self) -> int | None:
        """Where the outputs have their classes, as `classes_last` takes it."""
        return self.class_axis if self.likelihood.has_class_axis else -1

    @property
    def output_temperature(self) -> float:
        """What outputs are divided by; 1 unless they are logits."""
        return self.posterior.output_temperature if self.likelihood.is_classification else 1.0

    def arranged(self, f: Tensor) -> Tensor:
        """Outputs with their classes last, at their temperature, or an error if they do not fit the likelihood."""
        if self.output_temperature != 1:
            f = f / self.output_temperature
        if not self.likelihood.has_class_axis:
            return f
        require(f.ndim > 1, "model outputs", "(batch, ..., classes) for a categorical likelihood", tuple(f.shape))
        f = classes_last(f, self.axis)
        names = self.posterior.class_names
        enough = f.shape[-1] > 1 and (names is None or f.shape[-1] == len(names))
        wanted = f"{len(names)} classes" if names is not None else "at least 2 classes"
        require(enough, "model outputs", f"{wanted} for this categorical likelihood", tuple(f.shape))
        return f
