"""The predictive as a module: call it like the model, get the predictive mean."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.doubles import duplicate, exclusive
from posterity.inputs import Inputs, call
from posterity.posterior import Posterior
from posterity.prediction._draws import Draws
from posterity.prediction._forward import Runner
from posterity.prediction._question import Question
from posterity.trees import Tree, state_dtype


class PredictiveModule(nn.Module):
    """A network whose call returns E[y]: class probabilities (classes last), the regression mean or the expected count.

    It holds its own copy of the model and of every drawn set of weights, as buffers: `to`, `state_dict` and
    `load_state_dict` carry the whole predictive, and the model that was given stays alone. Gradients in the inputs
    flow. Calls from several threads wait for each other. That is `samples` times the memory of the weights that vary;
    `predict` needs only one at a time.

    Args:
        model: The network that the posterior belongs to.
        posterior: A posterior of any structure.
        samples: Number of draws; 0 predicts with the mean weights.
        seed: Seed of the draws: the same numbers as in `predict`.
        class_axis: Where the model's outputs have their classes, as in `predict`.

    Examples:
        >>> from posterity.posterior import Diagonal
        >>> from posterity.trees import snapshot, trainable
        >>> model = nn.Linear(2, 3)
        >>> prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
        >>> posterior = Posterior.of(model, prior, prior=prior, n=10, ess=10, likelihood="categorical")
        >>> PredictiveModule(model, posterior, samples=8)(torch.zeros(5, 2)).sum(-1)
        tensor([1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        samples: int = 64,
        *,
        seed: int = 0,
        class_axis: int | None = None,
    ) -> None:
        super().__init__()
        self.model = duplicate(model).eval().requires_grad_(False)
        posterior.apply(self.model)
        self._question = Question(self.model, posterior, samples, seed, False, class_axis)
        self._networks = _Stored(Draws(self.model, posterior, samples, seed))
        self.weights = self._networks.buffers
        self._run = Runner(self.model, self._networks)

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """E[y] for whatever arguments the model takes."""

        def outputs_of(inputs: Inputs) -> Tensor:
            some, by_name = inputs
            return self._question.arranged(call(lambda: self.model(*some, **by_name), ()))

        with exclusive(self.model):  # the drawn weights are put into it, one network after the other
            outputs = self._run(outputs_of, [(args, named)])
            means = [self._question.likelihood.mean(f.to(state_dtype(f.dtype))).sum(0) for _, f in outputs]
        return torch.stack(means).sum(0) / self._networks.count

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module; the network inside always evaluates."""
        super().train(mode)
        self.model.eval()
        return self


class _Stored:
    """Draws whose weights are buffers of a module and move with it."""

    def __init__(self, draws: Draws) -> None:
        self.count, self.nbytes, self.head_only = draws.count, draws.nbytes, draws.head_only
        self.masks = draws.masks
        self.buffers = nn.Module()
        for name, stacked in draws.stacked(range(draws.count)).items():
            self.buffers.register_buffer(name.replace(".", "/"), stacked)  # a buffer's name has no dots

    def weights(self, k: int) -> Tree:
        return {name: t[0] for name, t in self.stacked(range(k, k + 1)).items()}

    def stacked(self, numbers: range) -> Tree:
        return {name.replace("/", "."): t[numbers.start : numbers.stop] for name, t in self.buffers.named_buffers()}
