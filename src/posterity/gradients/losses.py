"""Total losses ℓ(θ) = Σᵢ ℓᵢ(θ) + R(θ): any callable of θ, or one with its examples, outputs or statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from posterity.batches import batches
from posterity.errors import expected, require
from posterity.likelihoods import Likelihood, likelihood

Loss = Callable[[Tensor], Tensor]


def weight(at_hand: int, n: int | None) -> float:
    """N/B, the number of examples that each of the B given ones represents; the one place with this ratio."""
    require(at_hand > 0, "data", "at least one example", "none")
    if n is None:
        return 1.0
    require(n >= at_hand, "n", f"at least the number of given examples ({at_hand})", n)
    return n / at_hand


@dataclass(frozen=True, kw_only=True)
class DataLoss:
    """ℓ(θ) = (N/B) Σ_b −log p(y_b | f_θ(x_b)) + R(θ).

    Calling it gives the total loss. It also provides the examples and the outputs f, which is what per-example
    squared gradients, the Gauss-Newton matrix and one-dimensional quadrature need.

    Args:
        inputs: Inputs of the B given examples.
        targets: Their targets.
        likelihood: A `Likelihood` or its name.
        model: The outputs f_θ(x), (B, K), as a function of (θ, inputs).
        regulariser: R(θ), usually −log of a prior. Leave it out where the prior is given to the rule.
        n: Size N of the whole data set, where the B examples are only a part of it.
    """

    inputs: Any
    targets: Tensor
    likelihood: Likelihood | str
    model: Callable[[Tensor, Any], Tensor]
    regulariser: Loss | None = None
    n: int | None = None
    weight: float = field(init=False)  # N/B

    def __post_init__(self) -> None:
        object.__setattr__(self, "likelihood", likelihood(self.likelihood))
        object.__setattr__(self, "weight", weight(len(self.targets), self.n))

    def __call__(self, theta: Tensor) -> Tensor:
        data = self.weight * self.examples(theta).sum()
        return data if self.regulariser is None else data + self.regulariser(theta)

    def examples(self, theta: Tensor) -> Tensor:
        """The loss of each example, (B,), unscaled."""
        outputs = self.outputs(theta)
        wanted = f"outputs ({len(self.targets)}, K)"
        require(outputs.ndim > 1 and len(outputs) == len(self.targets), "model", wanted, tuple(outputs.shape))
        self._likelihood.check(outputs, self.targets)
        return self._likelihood.loss(outputs, self.targets)

    def example_gradients(self, theta: Tensor) -> Tensor:
        """The gradient of each example's loss, (B, d), unscaled."""

        def one(point: Tensor, x: Any, y: Tensor) -> Tensor:
            return self._likelihood.loss(self.model(point, _batch_of_one(x)), y.unsqueeze(0)).sum()

        return torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(theta, self.inputs, self.targets)

    def outputs(self, theta: Tensor) -> Tensor:
        """The outputs f_θ(x), (B, K)."""
        return self.model(theta, self.inputs)

    def output_curvature(self, theta: Tensor) -> Tensor:
        """Λ: second derivative of each example's loss in its outputs, (B, K, K)."""
        return self._likelihood.curvature(self.outputs(theta))

    def minibatches(self, batch_size: int, *, seed: int = 0) -> Iterator[Self]:
        """The same loss seen through one minibatch after another, reshuffled each epoch, without end."""
        require(self.weight == 1.0, "minibatches", "the loss of a whole data set", "that of a part")
        data = batches((self.inputs, self.targets), batch_size=batch_size, shuffle=True, seed=seed)
        epoch = 0
        while True:
            for batch in data.epoch(epoch):
                yield replace(self, inputs=batch.inputs, targets=batch.targets, n=len(self.targets))
            epoch += 1

    @property
    def _likelihood(self) -> Likelihood:
        assert isinstance(self.likelihood, Likelihood)
        return self.likelihood


def _batch_of_one(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: part.unsqueeze(0) for name, part in x.items()}
    return x.unsqueeze(0)


def _linear(theta: Tensor, inputs: Tensor) -> Tensor:
    return (_like(inputs, theta) @ theta).unsqueeze(-1)


def _like(inputs: Tensor, theta: Tensor) -> Tensor:
    """The rows in the precision of θ, checked to be as long."""
    entries, columns = theta.shape[-1], inputs.shape[-1]
    require(entries == columns, "θ", f"{columns} entries, as the inputs have columns", entries)
    return inputs.to(theta.dtype)


@dataclass(frozen=True, kw_only=True)
class LinearLoss(DataLoss):
    """A generalised linear model: one output f = xᵀθ for each row x of the inputs, (B, d).

    Examples:
        >>> loss = LinearLoss(inputs=torch.eye(2), targets=torch.tensor([1.0, 0.0]), likelihood="bernoulli")
        >>> loss(torch.zeros(2))  # 2 log 2
        tensor(1.3863)
    """

    model: Callable[[Tensor, Any], Tensor] = _linear

    def __post_init__(self) -> None:
        if self.targets.ndim == 1:
            object.__setattr__(self, "targets", self.targets.unsqueeze(-1))
        super().__post_init__()
        rows = tuple(self.inputs.shape)
        require(len(rows) == 2 and rows[0] == len(self.targets), "inputs", f"({len(self.targets)}, d)", rows)
        require(self.inputs.is_floating_point(), "inputs", "floating-point numbers", self.inputs.dtype)
        self._likelihood.check(torch.zeros_like(self.targets), self.targets)

    def rows(self, theta: Tensor) -> Tensor:
        """The inputs, (B, d), in the precision of θ, (..., d)."""
        return _like(self.inputs, theta)

    def in_output(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ℓᵢ(f), ℓᵢ'(f) and ℓᵢ''(f) of every example at outputs f, (..., B), unscaled."""
        f, kind = f.unsqueeze(-1), self._likelihood
        y = self.targets.expand(f.shape)
        return kind.loss(f, y), kind.residual(f, y).squeeze(-1), kind.hessian(f, y)[..., 0, 0]


@dataclass(frozen=True)
class ConjugateLoss:
    """ℓ(θ) = −⟨t, T(θ)⟩ + const: a likelihood conjugate to q, known by its statistics t = Σᵢ t(yᵢ).

    Args:
        statistics: t, aligned with q.natural.
    """

    statistics: tuple[Tensor, ...]

    @classmethod
    def of(cls, *examples: Tensor, n: int | None = None) -> Self:
        """From the statistics t(yᵢ) of each example, one tensor (B, ...) for each block; n as in `DataLoss`."""
        if len({len(block) for block in examples}) != 1:
            raise expected("statistics", "one row for each example in every block", [len(b) for b in examples])
        exact = (block if block.is_floating_point() else block.double() for block in examples)
        return cls(tuple(weight(len(block), n) * block.sum(0) for block in exact))


AnyLoss = Loss | ConjugateLoss


def as_function(loss: AnyLoss) -> Loss:
    """The loss as a function of θ, or an error."""
    if not callable(loss):
        raise expected("loss", "a function of θ (a ConjugateLoss goes with Conjugate())", type(loss).__name__)
    return loss
