"""An optimizer over bases whose budget of noise follows rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posterity.likelihoods import Likelihood
from posterity.optim._meter import Meter
from posterity.optim._normalised import Normalised
from posterity.optim._over_bases import OverBases
from posterity.optim.engine import _priors
from posterity.optim.watch import DRAWS, FINAL_DRAWS, Watch


class Watching(OverBases):
    """The part of `Variational` that looks at rows after some of its steps."""

    meter: Meter
    normalised: Normalised
    _watch: Watch | None = None

    def watch(
        self, model: nn.Module, data: Any, *, likelihood: str | Likelihood | Callable[[], Likelihood] = "categorical"
    ) -> None:
        """Let rows that are not trained on set the budget: more noise where their predictions are overconfident.

        Steps look at the rows some fifty times, with four draws each; see `posterity.optim.watch`. Call it before the
        first step, and again after a state dict is loaded.

        Args:
            model: The model whose parameters this optimizer trains.
            data: (inputs, targets), a Dataset or a DataLoader; 500 of its rows are looked at.
            likelihood: What the outputs mean, or a function that returns it.
        """
        _priors.trained(self._parameters, model)
        self._watch = Watch.of(model, data, likelihood)
        self.meter.watch()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step from the gradients; see `VariationalOptimizer.step`. It may look at watched rows afterwards."""
        steps, loss = self.meter.steps, super().step(closure)
        if self._watch is not None and self.meter.steps > steps and self.meter.look_due():
            self._look_at_rows(self._watch)
        return loss

    def _look_at_rows(self, rows: Watch) -> None:
        self.meter.adjust(*rows.temperature(self._outputs(rows, DRAWS)), self.normalised.share)

    def output_temperature(self) -> float:
        """What to divide logits by, so that predictions fit the watched rows best; 1 where there are none.

        More noise than that of Bayes' rule is never drawn, and some networks stay overconfident with it.
        """
        if self._watch is None or self.meter.silent or not self._watch.law().is_classification:
            return 1.0
        return self._watch.output_temperature(self._outputs(self._watch, FINAL_DRAWS))

    def _outputs(self, rows: Watch, draws: int) -> list[Tensor]:
        """Outputs for watched rows of as many draws, whose noise a resumed run draws again."""
        before, self._samples.predictions = self._samples.predictions, DRAWS * self.meter.steps
        found = []
        for _ in range(draws):
            with self.sampled_params():
                found.append(rows.outputs())
        self._samples.predictions = before
        return found

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_watch": self._watch}
