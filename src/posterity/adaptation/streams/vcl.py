"""Variational continual learning: each posterior is the prior of the next task.

q_t = argmin_q E_q[Σ ℓ] + KL(q ‖ q_{t−1})

By Bayes by backprop (VCL) or by IVON. A weight that no task has needed is as wide as the prior, and the next task would
drown in its noise: training starts from the last means but with narrow widths, and widens what it does not need. What
the data do not reach at all, such as another task's head, keeps its width, regardless of the start.
Coresets are kept out of training and learnt just before prediction, from where q_t is, by a copy that is thrown away.
Where everything is linear and Gaussian, q_t is the posterior given all data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posterity.adaptation.selection import select
from posterity.adaptation.streams.strategies import LIKELIHOOD, Strategy, trained
from posterity.adaptation.streams.tasks import Data, Task
from posterity.batches import Batch
from posterity.posterior import Diagonal, Posterior
from posterity.prediction import predict
from posterity.trees import Tree, snapshot, trainable


@dataclass
class VCL(Strategy):
    """Variational continual learning.

    Args:
        method: "bayes_by_backprop" or "ivon".
        width: Largest σ of a weight when a task begins, for "bayes_by_backprop"; for "ivon", `hess_init` decides.
        coreset: Examples kept out of each task for its coreset; 0 for none.
        by: How they are chosen: "random" or "k-centre".
        coreset_options: What `po.fit` is given when the coresets are learnt, where that differs from `options`.
        samples: Draws of a prediction.

    References:
        Nguyen, Li, Bui and Turner, "Variational continual learning", 2018.
    """

    method: str = "bayes_by_backprop"
    width: float = math.exp(-3)
    coreset: int = 0
    by: str = "random"
    coreset_options: dict[str, Any] = field(default_factory=dict)
    samples: int = 20
    refined: tuple[nn.Module, Posterior] | None = field(default=None, init=False, repr=False)

    def learn(self, model: nn.Module, task: Task, seed: int) -> None:
        self.refined = None
        inputs, targets = task.train
        everything = Batch(inputs, targets, torch.arange(len(targets)))
        self.seen += len(targets)
        if self.coreset:
            kept = select(model, self.posterior(model), task.train, self.coreset, by=self.by, weighted=False, seed=seed)
            self.memories.append(kept)
            rest = (~torch.isin(everything.ids, kept.ids.cpu())).nonzero()[:, 0]
            everything = everything.take(rest)
        self.anchor = self._update(model, (everything.inputs, everything.targets), seed, self.options, self.width)

    def probabilities(self, model: nn.Module, data: Data) -> Tensor:
        if self.memories and self.refined is None:
            self.refined = self._with_coresets(copy.deepcopy(model))
        model, posterior = self.refined or (model, self.posterior(model))
        return predict(model, posterior, data[0], samples=self.samples, batch_size=1024).probs

    def posterior(self, model: nn.Module, structure: Diagonal | None = None) -> Posterior:
        """q as a posterior of the model."""
        q = self.prior(model) if structure is None else structure
        return Posterior.of(model, q, prior=self.prior(model), n=self.seen, ess=self.seen, likelihood=LIKELIHOOD)

    def _with_coresets(self, model: nn.Module) -> tuple[nn.Module, Posterior]:
        """A model that has learnt the coresets of all tasks too, and its posterior."""
        core = Batch.concatenate([memory.batch() for memory in self.memories])
        options = {**self.options, **self.coreset_options}
        return model, self.posterior(model, self._update(model, (core.inputs, core.targets), 0, options, math.inf))

    def _update(self, model: nn.Module, data: Data, seed: int, options: Mapping[str, Any], width: float) -> Diagonal:
        """q_t from q_{t−1} and data; widths start where they are, or at `width` where they are wider."""
        prior = self.prior(model)
        given = {"prior": prior, "schedule": "constant", **options}
        if self.method == "bayes_by_backprop":
            given["sigma_init"] = {name: v.sqrt().clamp_max(width) for name, v in prior.variance.items()}
        with data_reach(model) as reached:
            run = trained(model, data, method=self.method, seed=seed, **given)
        structure = run.posterior.structure
        assert isinstance(structure, Diagonal)
        before = prior.precision_diagonal()
        precision = {
            name: torch.where(reached[name], p, before[name]) for name, p in structure.precision_diagonal().items()
        }
        return Diagonal(snapshot(trainable(model)), precision)


@contextmanager
def data_reach(model: nn.Module) -> Iterator[Tree]:
    """Which weights the data reach: those that ever have a gradient through the model's outputs while this is open.

    Weights that replace the model's own are watched where they are used, so that no gradient of a prior counts.
    """
    reached = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in trainable(model).items()}
    own: set[str] = set()  # parameters themselves are watched once, what is drawn in their place each time

    def note(name: str, gradient: Tensor) -> None:
        reached[name] |= gradient != 0

    def watch(module: nn.Module, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        used = {name: t for name, t in module.named_parameters() if t.requires_grad and name not in own}
        for name in used.keys() & reached.keys():
            handle = used[name].register_hook(partial(note, name))
            if used[name].is_leaf:
                own.add(name)
                stack.callback(handle.remove)

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(watch).remove)
        yield reached
