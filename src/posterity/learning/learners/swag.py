"""SWAG: the first two moments of SGD's path, as a low-rank-plus-diagonal Gaussian."""

from __future__ import annotations

import copy

import torch
from torch import nn

from posterity.batches import Batches
from posterity.errors import require, require_whole
from posterity.inputs import call
from posterity.learning.learners._base import TrainingPlan
from posterity.learning.learners.point import SGDLearner
from posterity.learning.schedules import LinearThenConstant, Schedule
from posterity.likelihoods import Likelihood
from posterity.posterior import LowRank, Posterior
from posterity.trees import Tree, snapshot, trainable


class SWAGLearner(SGDLearner):
    """SGD at a constant rate, looked at once an epoch from `start` on.

        m_n = m_{n−1} + (θ_n − m_{n−1})/n,   S_n = S_{n−1} + (θ_n − m_{n−1})(θ_n − m_n),   δ_n = θ_n − m_n
        q = N(m, ½ diag(S/n) + ½ Σ_r δ_r δ_rᵀ/(K − 1)),   δ_r the last K deviations

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of the Gaussian prior; weight decay is prior/N.
        momentum: Momentum of SGD.
        rank: Number K of deviations kept.
        start: The fraction of training after which snapshots are taken.
        final_lr: The learning rate of that phase, as a fraction of `lr`.

    References:
        Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning", 2019.
    """

    default_lr = 0.05

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: float = 1.0,
        momentum: float = 0.9,
        rank: int = 20,
        start: float = 0.5,
        final_lr: float = 0.2,
    ) -> None:
        super().__init__(model, plan, prior=prior, momentum=momentum)
        require_whole("rank", rank, least=2)
        require(0 <= start < 1, "start", "a fraction of training in [0, 1)", start)
        self.rank, self.start, self.final_lr = rank, start, final_lr
        self.count = 0
        self.mean: Tree = {}
        self.scatter: Tree = {}
        self.deviations: list[Tree] = []

    def schedule(self) -> Schedule:
        return LinearThenConstant(0.5 * self.start, self.start, self.final_lr)

    @torch.no_grad()
    def epoch_done(self, progress: float) -> None:
        if progress <= self.start:
            return
        weights = snapshot(trainable(self.model))
        if self.count == 0:
            self.mean = {name: torch.zeros_like(w) for name, w in weights.items()}
            self.scatter = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.count += 1
        for name, w in weights.items():
            before = w - self.mean[name]
            self.mean[name] += before / self.count
            self.scatter[name] += before * (w - self.mean[name])
        self.deviations.append({name: w - self.mean[name] for name, w in weights.items()})
        self.deviations = self.deviations[-self.rank :]

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        """SWAG's Gaussian; before the second snapshot the point is used."""
        if self.count < 2:
            return super().posterior(likelihood, data)
        scale = (2 * (len(self.deviations) - 1)) ** -0.5
        rows = {name: scale * torch.stack([d[name] for d in self.deviations]) for name in self.mean}
        variance = {name: 0.5 * s / self.count for name, s in self.scatter.items()}
        at_mean = copy.deepcopy(self.model)
        at_mean.load_state_dict(self.mean, strict=False)
        refresh_batch_norm(at_mean, data)
        model, self.model = self.model, at_mean
        try:
            return self.hand_over(LowRank(self.mean, variance, rows), likelihood)
        finally:
            self.model = model

    def state(self) -> Tree:
        trees = {"mean": self.mean, "scatter": self.scatter}
        trees |= {f"deviation{i}": d for i, d in enumerate(self.deviations)}
        tensors = {f"{part}/{name}": t for part, tree in trees.items() for name, t in tree.items()}
        return tensors | {"count": torch.tensor(self.count)}

    def load(self, state: Tree) -> None:
        def part(label: str) -> Tree:
            return {name: state[f"{label}/{name}"] for name in trainable(self.model)}

        self.count = int(state["count"])
        if self.count:
            self.mean, self.scatter = part("mean"), part("scatter")
        self.deviations = [part(f"deviation{i}") for i in range(min(self.count, self.rank))]


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, data: Batches) -> None:
    """Recompute the statistics of all batch-norm layers as averages over one pass of the data."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not layers:
        return
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for a cumulative average
        layer.train()
    device = next(model.parameters()).device
    for batch in data:
        call(model, batch.to(device).inputs)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
