"""How long and how fast an adapted network trains, and what it sets out from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.adaptation.penalties.kprior import outputs_of
from posterity.adaptation.problem import AdaptationProblem
from posterity.adaptation.solve.removed_classes import KEPT as KEPT_OF_OTHERS
from posterity.adaptation.solve.training import Settings
from posterity.learning.committee import stacks
from posterity.learning.learners.variational import VariationalLearner
from posterity.learning.length import MOST, usual_epochs
from posterity.posterior import Training

# Networks whose training is known: chosen on five sets of 800 examples with the seeds 10 and 11.
SHARES, FACTORS = (0.1, 0.4), (0.05, 1.0)  # of its length and of its learning rate, for one example and for many
MEASURED_SHARES, MEASURED_FACTORS = (0.05, 0.7), (0.3, 1.0)  # where two trainings are compared, which have to differ
FEW = 0.01  # share of the data from which on perceptrons set out from new weights
AGAIN_SHARE, AGAIN_FACTOR = 0.65, 1.4  # which they do with larger steps, about as long a way in fewer of them
KEPT = 0.2  # of their old weights
LONGER = 0.35  # by how much, for each wrong label to one that the network could not learn
HARD = 0.01  # share of the data that no network learns, at least
# Regressions: chosen on three sets of 350 to 400 examples with the seeds 10 and 11.
NOISIER = 1.1  # ratio of squared errors with and without what goes, from which on they train once more
KEPT_OF_AMOUNTS = 0.6  # of their old weights then
POWER = 2  # of that ratio, by which they then train longer
# Others, whose training is unknown: lengths chosen on digits and USPS with the seeds 10 and 11.
SMALL_STEPS, LARGE_STEPS, LARGE_EPOCHS = 100, 250, 5
SMALL_RATE, LARGE_RATE = 1e-3, 3e-3
LARGE = 0.08  # share of the data from which on a change counts as large
BATCH = 64
TINY = 1e-300


@dataclass(frozen=True)
class Schedule:
    """How long to train, how fast and on how many examples at a time.

    Args:
        steps: Steps of Adam.
        lr: Learning rate.
        batch_size: Examples a step.
        kept: How much of the weights to set out from. Where a prior has decided widths alone, new weights make up the
            rest, and noise begins with this share of its width.
        training: The training from the start that this stands for, where it is another than the old one.
        halves: Whether to take the second half of the steps only if the first has lowered the objective.
        anew: Whether the weights are new: then running statistics are learnt with them.
    """

    steps: int
    lr: float
    batch_size: int
    kept: float = 1.0
    training: Training | None = None
    halves: bool = True
    anew: bool = False

    @classmethod
    def of(cls, problem: AdaptationProblem, rows: int, lost: bool, settings: Settings) -> Schedule:
        """What a change of this size needs; explicit settings override it."""
        training, share = _known(problem), _share(problem, rows)
        batch_size = settings.batch_size or (BATCH if training is None else training.batch_size)
        each = -(-rows // batch_size)
        if training is None:
            found = cls._unknown(problem, each, share, lost, batch_size)
        else:
            found = cls._like(training, problem, each, share, batch_size, SHARES, FACTORS)
            if (lost or share >= FEW) and _begins_again(problem, rows):
                again = cls._again(training, problem, each, batch_size)
                long_enough = settings.epochs is None or settings.epochs * each >= again.steps
                found = again if long_enough else found
        steps = settings.epochs * each if settings.epochs else found.steps
        return replace(found, steps=steps, lr=settings.lr or found.lr)

    @classmethod
    def measuring(cls, problem: AdaptationProblem, rows: int) -> Schedule:
        """What two trainings from the old weights need to differ, one with a change and one without."""
        training, share = _known(problem), _share(problem, rows)
        batch_size = BATCH if training is None else training.batch_size
        each = -(-rows // batch_size)
        if training is None:
            found = cls._unknown(problem, each, share, False, batch_size)
        else:
            found = cls._like(training, problem, each, share, batch_size, MEASURED_SHARES, MEASURED_FACTORS)
        return replace(found, steps=max(found.steps, SMALL_STEPS))

    @classmethod
    def _unknown(cls, problem: AdaptationProblem, each: int, share: float, lost: bool, batch_size: int) -> Schedule:
        """Some steps, where the old training is unknown or a prior has pulled its means.

        A change below 8 % of the data takes fewer and a smaller rate: a large rate over few steps moves weights that
        had no reason to move. So does a large rate where a class is lost, whose output is silenced first.
        """
        size = min(1.0, share / LARGE)
        large = max(LARGE_STEPS, LARGE_EPOCHS * each) * (1 if problem.change.classes is None else 2)
        lr = SMALL_RATE + (0.0 if lost else size) * (LARGE_RATE - SMALL_RATE)
        kept = KEPT_OF_OTHERS if lost else 1.0
        return cls(round(SMALL_STEPS + size * (large - SMALL_STEPS)), lr, batch_size, kept)

    @classmethod
    def _like(
        cls,
        training: Training,
        problem: AdaptationProblem,
        each: int,
        changed: float,
        batch_size: int,
        shares: tuple[float, float],
        factors: tuple[float, float],
    ) -> Schedule:
        """A share of the old training, which was as long as it could be without memorising its data."""
        size, lr = min(1.0, changed / LARGE), training.lr or VariationalLearner.usual_lr(problem.new)
        share, factor = (low + size * (high - low) for low, high in (shares, factors))
        return cls(max(1, round(share * training.epochs * each)), factor * lr, batch_size, halves=False)

    @classmethod
    def _again(cls, training: Training, problem: AdaptationProblem, each: int, batch_size: int) -> Schedule:
        """The old training once more, of a perceptron, from weights that are new in part.

        From its own weights it would become too sure, and keep what it had memorised. Its length and its noise are
        known, so that this costs a fraction of `po.fit`. Where wrong targets go, it takes longer: they had kept the old
        training short.
        """
        lr = training.lr or VariationalLearner.usual_lr(problem.new)
        most = max(training.epochs, usual_epochs(each))  # of what `po.fit` finds
        whole = training._replace(epochs=min(longer(problem) * training.epochs, most))
        steps = max(1, round(AGAIN_SHARE * whole.epochs * each))
        kept = KEPT if problem.posterior.likelihood.is_classification else KEPT_OF_AMOUNTS
        return cls(steps, AGAIN_FACTOR * lr, batch_size, kept, whole, halves=False)


def _known(problem: AdaptationProblem) -> Training | None:
    """The old training, where its length and its noise are what held the weights."""
    return problem.posterior.training if problem.widths_alone() else None


def _share(problem: AdaptationProblem, rows: int) -> float:
    """The share of the data that changes; everything where classes are new or the prior is another one."""
    change = problem.change
    if change.classes is not None or problem.other_prior():
        return 1.0
    touched = [batch.ids.cpu() for batch in (change.added, change.removed) if batch is not None]
    return len(torch.cat(touched).unique()) / rows if touched else 0.0  # what gets another label has one id


def _begins_again(problem: AdaptationProblem, rows: int) -> bool:
    """Whether a network trains once more from weights that are new in part.

    Those do that `po.fit` would search the length of: beside that, a training of known length is cheap. Regressions
    become neither too sure nor memorise much, so that only wrong targets are a reason.
    """
    if not stacks(problem.new) or rows > MOST:
        return False
    return problem.posterior.likelihood.is_classification or noisier(problem) >= NOISIER


def noisier(problem: AdaptationProblem) -> float:
    """How many times as large the mean squared error of a regression was with what goes; 1 where that is nothing."""
    likelihood = problem.posterior.likelihood
    before = None if likelihood.noise_precision is None else _before(problem)
    if before is None:
        return 1.0
    stay, go = (likelihood.residual(f, y).double().square().cpu() for f, y in before)
    return max(1.0, (torch.cat((stay, go)).mean() / stay.mean().clamp_min(TINY)).item())


def _before(problem: AdaptationProblem) -> list[tuple[Tensor, Tensor]] | None:
    """Outputs of the old model and old targets, of what stays and of what goes or gets another target."""
    present, gone, new = problem.all_data(), problem.change.removed, problem.change.added
    kept = 0 if present is None else len(present) - (0 if new is None else len(new))
    if present is None or gone is None or kept == 0:
        return None
    stays = present.take(torch.arange(kept))  # what is new comes last
    return [(outputs_of(problem.old, batch), batch.targets) for batch in (stays, gone)]


def longer(problem: AdaptationProblem) -> float:
    """How many times as long a training without the removed labels would be.

    Cross-validation stops a training early where labels contradict what it has learnt. The wrong labels among those
    that go are counted by 1 − p(label), beyond that of those that stay, and fully where another label takes their
    place. The labels that stay and contradict the network would have stopped it anyway. Of a regression, it is the
    squared errors that tell.
    """
    before, likelihood = _before(problem), problem.posterior.likelihood
    if before is None:
        return 1.0
    if not likelihood.is_classification:
        return noisier(problem) ** POWER
    gone, new = problem.change.removed, problem.change.added
    assert gone is not None
    doubt, doubted = (1 - likelihood.loss(f, y).neg().exp() for f, y in before)
    if new is not None:
        doubted[torch.isin(gone.ids, new.ids).to(doubted.device)] = 1.0
    wrong = (doubted - doubt.mean()).sum().clamp_min(0).item() / (len(doubt) + len(doubted))
    right = likelihood.correct(*before[0])
    hard = HARD if right is None else HARD + 1 - right.double().mean().item()
    return 1 + LONGER * wrong / hard
