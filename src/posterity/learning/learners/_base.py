"""What a method adds to the training loop: an optimizer, how weights are drawn, the posterior it returns."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from posterity.batches import Batch, Batches
from posterity.errors import expected, require
from posterity.inputs import Inputs, call
from posterity.learning import pretrained
from posterity.learning.schedules import Cosine, Schedule
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Posterior, Structure
from posterity.trees import Tree, check_same_shapes, trainable

Prior = float | Diagonal | Posterior


@dataclass(frozen=True)
class TrainingPlan:
    """What is known before training starts.

    Args:
        n: Number of distinct training examples N.
        steps: Number of optimizer steps.
        lr: Learning rate before the schedule.
        seed: Seed of all randomness.
        learns_noise: Whether the noise precision of a regression is to be learnt.
        class_names: Names of the classes, for the posterior to carry.
        batch: Examples behind one step, where it is known.
        unseen_loss: Mean loss of classes out of fold, where there was a cross-validation.
    """

    n: int
    steps: int
    lr: float
    seed: int
    learns_noise: bool = False
    class_names: tuple[str, ...] | None = None
    batch: int | None = None
    unseen_loss: float | None = None


class Learner(ABC):
    """One method of learning. The model's parameters are the posterior mean whenever no draw is open."""

    default_lr: ClassVar[float]
    default_clip: ClassVar[float] = math.inf  # largest norm of the gradient
    optimizer: Optimizer
    prior: Diagonal
    draws: int = 1  # weight draws for each batch
    refused: ClassVar[tuple[str, ...]] = ()  # arguments of `fit` that the method has no use for
    averages: ClassVar[bool] = False  # whether the optimizer divides by the batches and draws of a step itself
    follows_adam: ClassVar[bool] = False  # whether its learning rate is one of Adam's
    mixes: ClassVar[bool] = True  # whether the posteriors of several runs make one of an ensemble
    noise_from_folds: ClassVar[bool] = True  # whether a cross-validated regression takes its noise from the folds
    watches_examples: ClassVar[bool] = False  # whether examples that are not trained on set its widths

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        self.model = model
        self.plan = plan

    @classmethod
    def options(cls) -> list[str]:
        """Names of what the method takes beyond the arguments of `fit`."""
        return [p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY]

    @classmethod
    def usual_lr(cls, model: nn.Module) -> float:
        """The learning rate for users who do not choose one."""
        return pretrained.usual_lr(model) if cls.fine_tunes(model) else cls.default_lr

    @classmethod
    def fine_tunes(cls, model: nn.Module) -> bool:
        """Whether defaults are those for pretrained networks: they are known for Adam's steps."""
        return cls.follows_adam and pretrained.is_pretrained(model)

    @classmethod  # noqa: B027 (a hook)
    def check(cls, f: Tensor, likelihood: Likelihood) -> None:
        """Raise where the method does not support such outputs, before anything is trained."""

    def schedule(self) -> Schedule:
        """The schedule for users who do not choose one."""
        return Cosine()

    def scale(self, likelihood: Likelihood) -> float:
        """A factor on the learning rate that follows the likelihood."""
        return 1.0

    def draw(self, step: int, sample: int) -> AbstractContextManager[object]:
        """A context in which forward and backward see weights drawn from q; the point itself by default."""
        return nullcontext()

    def passes(self, step: int, sample: int, scaler: GradScaler) -> Iterator[AbstractContextManager[object]]:
        """The contexts of all passes of a draw, one after the other."""
        yield self.draw(step, sample)

    def forward(self, inputs: Inputs) -> Tensor:
        """Outputs at the drawn weights."""
        return call(self.model, inputs)

    def forwards(self) -> Sequence[Callable[[Inputs], Tensor]]:
        """The networks that are trained together, each on the whole loss."""
        return [self.forward]

    def backward(self, loss: Tensor, batch: Batch, likelihood: Likelihood) -> None:
        """Leave the gradient of the loss of a batch in `.grad`."""
        loss.backward()

    def penalty(self) -> Tensor | None:
        """What the method adds to the mean loss."""
        return None

    def scaled_by(self, scaler: GradScaler) -> None:  # noqa: B027 (a hook)
        """Called before training with what multiplies losses, which prices of noise depend on."""

    def watch(self, data: Any, likelihood: Callable[[], Likelihood]) -> None:  # noqa: B027 (a hook)
        """Learn from rows that are not trained on how wide the posterior should be, where the method can."""

    def epoch_done(self, progress: float) -> None:  # noqa: B027 (a hook)
        """Called after each epoch, at the fraction `progress` of training."""

    def figures(self) -> dict[str, float]:
        """Figures of the method's posterior during training, for the history: sigma, the median of all σ."""
        return {}

    def stopped(self) -> None:  # noqa: B027 (a hook)
        """Called where training ended before its planned length, at the weights that are kept."""

    def state(self) -> Tree:
        """Tensors besides parameters, buffers and optimizer state that a checkpoint has to hold."""
        return {}

    def load(self, state: Tree) -> None:  # noqa: B027 (a hook)
        """Take back what `state` gave."""

    @abstractmethod
    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        """The posterior at this moment."""

    def leave(self, posterior: Posterior) -> None:
        """Put the model where training ends: at the mean."""
        posterior.apply(self.model)

    def hand_over(
        self, structure: Structure, likelihood: Likelihood, ess: float | None = None, output_temperature: float = 1.0
    ) -> Posterior:
        """A structure with everything that makes it a posterior of this model and these data."""
        return Posterior.of(
            self.model,
            structure,
            prior=self.prior,
            n=self.plan.n,
            ess=self.plan.n if ess is None else ess,
            likelihood=likelihood,
            class_names=self.plan.class_names,
            output_temperature=output_temperature,
        )


def as_prior(model: nn.Module, prior: Prior) -> Diagonal:
    """A Gaussian over the model's parameters: N(0, 1/prior) for a number, or the one that is given.

    A posterior of earlier training becomes the prior of the next by the diagonal of its precision, at temperature 1.
    """
    parameters = trainable(model)
    if isinstance(prior, Posterior):
        prior.check(model)
        prior = prior.as_prior()
    if isinstance(prior, Diagonal):
        check_same_shapes(prior.mean, parameters, "prior")
        return prior
    if not isinstance(prior, (int, float)):
        raise expected("prior", "a precision, a Diagonal or a Posterior", prior)
    require(0 <= prior < float("inf"), "prior", "a precision >= 0", prior)
    return Diagonal.isotropic(parameters, float(prior))
