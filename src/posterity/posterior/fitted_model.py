"""A model, its posterior and its data, checked to belong together: the input of every question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from posterity.batches import Batch, Batches, OwnPart, in_order
from posterity.curvature.covariance import Covariance, fitted
from posterity.errors import require
from posterity.inputs import Inputs, attempt
from posterity.likelihoods import Likelihood
from posterity.posterior._posterior import Posterior
from posterity.posterior.private import double_at_mean
from posterity.progress import track
from posterity.trees import evaluating


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A model, its posterior, and data whose examples have ids.

    Args:
        model: The model; questions read it at the posterior mean and do not change it.
        posterior: Its posterior, which holds the likelihood.
        data: Batches in the order of the data.
    """

    model: nn.Module
    posterior: Posterior
    data: Batches

    @classmethod
    def of(cls, model: nn.Module, posterior: Posterior, data: Any, batch_size: int = 256) -> FittedModel:
        """The three together, after a check that they fit each other; where possible with a double of the model."""
        check_belongs(model, posterior)
        own = double_at_mean(model, posterior)
        return cls(model if own is None else own, posterior, in_order(data, batch_size))

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""
        return self.posterior.likelihood

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.model.parameters()).device

    @cached_property
    def covariance(self) -> Covariance:
        """The covariance of the weights at temperature 1, where the model computes and in its precision."""
        return fitted(self.posterior.covariance(untempered=True), dict(self.model.named_parameters()))

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """The model at the posterior mean, in evaluation mode, for one thread at a time; afterwards it is as it was."""
        with evaluating(self.model), self.posterior.applied(self.model):
            yield

    def batches(self, label: str) -> Iterator[Batch]:
        """The data, batch by batch, on the device of the model."""
        for batch in track(self.data, label, total=len(self.data)):
            yield batch.to(self.device)

    def own_batches(self, label: str) -> Iterator[Batch]:
        """The batches of this process, where several share a pass over the data."""
        for batch in track(OwnPart(self.data), label):
            yield batch.to(self.device)

    def examples(self, ids: Tensor, rows: Tensor) -> list[Batch]:
        """The examples with these ids, which are in these rows when the data are read in order."""
        if not isinstance(self.data.source, DataLoader):
            return [self.data.take(part).to(self.device) for part in rows.split(self.data.batch_size)]
        found = []
        for batch in self.batches("examples"):
            inside = torch.isin(batch.ids, ids)
            if inside.any():
                found.append(batch.take(inside.nonzero()[:, 0]))
        return found

    def outputs(self, inputs: Inputs) -> Tensor:
        """The model's outputs (B, K), without a graph."""
        with torch.no_grad():
            f = attempt(self.model, inputs)
        require(f.dim() == 2, "model output", "one row of outputs for each example, (B, K)", tuple(f.shape))
        require(bool(torch.isfinite(f).all()), "model output", "finite numbers", "NaN or infinity")
        return f

    def targets(self, f: Tensor, y: Tensor) -> Tensor:
        """Targets in the dtype that fits the outputs, or an error if they do not fit."""
        return self.likelihood.as_targets(f, y)


def check_belongs(model: nn.Module, posterior: Posterior) -> None:
    """Refuse what is no model, what is no posterior, and the posterior of another model."""
    for name, given, kind in (("model", model, nn.Module), ("posterior", posterior, Posterior)):
        require(isinstance(given, kind), name, f"a {kind.__name__}", type(given).__name__)
    posterior.check(model)
