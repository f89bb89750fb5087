"""Variational continual learning: each posterior is the prior of the next task.

q_t = argmin_q E_q[Σ ℓ] + KL(q ‖ q_{t−1})

By Bayes by backprop (VCL) or by IVON. Coresets are kept out of training and learnt just before prediction, from where
q_t is, by a copy that is thrown away. Where everything is linear and Gaussian, q_t is the posterior given all data.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.kprior import gathered
from posterity.adaptation.past import rows_of_batch
from posterity.adaptation.selection import select
from posterity.adaptation.strategies import LIKELIHOOD, Strategy
from posterity.adaptation.streams import Data, Task
from posterity.batches import Batch
from posterity.learning import fit
from posterity.posterior import Diagonal, Posterior
from posterity.prediction import predict
from posterity.trees import snapshot, trainable


@dataclass
class VCL(Strategy):
    """Variational continual learning.

    Args:
        method: "bayes_by_backprop" or "ivon".
        coreset: Examples kept out of each task for its coreset; 0 for none.
        by: How they are chosen: "random" or "k-centre".
        coreset_options: What `po.fit` is given when the coresets are learnt, where that differs from `options`.
        samples: Draws of a prediction.

    References:
        Nguyen, Li, Bui and Turner, "Variational continual learning", 2018.
    """

    method: str = "bayes_by_backprop"
    coreset: int = 0
    by: str = "random"
    coreset_options: dict[str, Any] = field(default_factory=dict)
    samples: int = 20

    def learn(self, model: nn.Module, task: Task, seed: int) -> None:
        inputs, targets = task.train
        everything = Batch(inputs, targets, torch.arange(len(targets)))
        self.seen += len(targets)
        if self.coreset:
            kept = select(model, self.posterior(model), task.train, self.coreset, by=self.by, weighted=False, seed=seed)
            self.memories.append(kept)
            rest = (~torch.isin(everything.ids, kept.ids.cpu())).nonzero()[:, 0]
            everything = rows_of_batch(everything, rest)
        self.anchor = self._update(model, (everything.inputs, everything.targets), seed, self.options)

    def probabilities(self, model: nn.Module, data: Data) -> Tensor:
        posterior = self.posterior(model)
        if self.memories:
            model = copy.deepcopy(model)
            core = gathered([memory.batch() for memory in self.memories])
            q = self._update(model, (core.inputs, core.targets), 0, {**self.options, **self.coreset_options})
            posterior = self.posterior(model, q)
        return predict(model, posterior, data[0], samples=self.samples, batch_size=1024).probs

    def posterior(self, model: nn.Module, structure: Diagonal | None = None) -> Posterior:
        """q as a posterior of the model."""
        q = self.prior(model) if structure is None else structure
        return Posterior.of(model, q, prior=self.prior(model), n=self.seen, ess=self.seen, likelihood=LIKELIHOOD)

    def _update(self, model: nn.Module, data: Data, seed: int, options: Any) -> Diagonal:
        """q_t from q_{t−1} and data; widths start where they are."""
        given = {"prior": self.prior(model), "schedule": "constant", **options}
        if self.anchor is not None and self.method == "bayes_by_backprop":
            given["sigma_init"] = {name: v.sqrt() for name, v in self.anchor.variance.items()}
        run = fit(model, data, method=self.method, likelihood=LIKELIHOOD, seed=seed, **given)
        structure = run.posterior.structure
        assert isinstance(structure, Diagonal)
        return Diagonal(snapshot(trainable(model)), structure.precision)
