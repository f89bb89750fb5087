"""The head on frozen features: a linear classifier, whose prior and temperature predictions out of fold choose."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.errors import require
from posterity.learning import Run, laplace
from posterity.learning.folds import OutOfFold
from posterity.progress import track
from posterity.runs.baseline import STEPS, logistic
from posterity.runs.columns import Ignored, Text
from posterity.runs.networks import HEAD, RESIDUAL
from posterity.runs.preprocessing import ENCODED, Examples, Preprocessing
from posterity.runs.targets import Amount, Classes, Target

PRIORS = tuple(10 ** (k / 2) for k in range(-2, 7))  # from 0.1 to 1000
TEMPERATURES = tuple(4.0**-k for k in range(8))  # from 1 to 1/16384
PRIOR, TEMPERATURE = PRIORS[5], TEMPERATURES[3]  # where cross-validation starts, and what holds without it
BIAS = 1e-3  # precision of the prior on the bias, which is trained without one
TOLERANCE = 1.005  # of the lowest loss: the weakest prior and the widest posterior within it are taken
_STEPS = 40  # of L-BFGS for each prior, from the weights of the one before
_DRAWS = 16

Regression = tuple[Tensor, Tensor]  # weights (D, C) and bias (C)


def best_model(preprocessing: Preprocessing, plain: bool) -> str:
    """The default model for data of a kind; `plain`: the user chose no method either."""
    if len(preprocessing.shape) == 3:
        return "cnn"
    columns = preprocessing.columns
    if not any(isinstance(column, Text) or column == Ignored(column.name, ENCODED) for column in columns):
        return RESIDUAL if isinstance(preprocessing.target, Amount) else "tabular"
    return HEAD if plain and isinstance(preprocessing.target, Classes) else "mlp"


def check_head(target: Target, method: str, said: Collection[str]) -> None:
    """Raise for options that a head does not have."""
    require(isinstance(target, Classes), "model", "another than 'head', which learns classes", f"{target.task}s")
    require(method == "laplace", "method", "laplace for the model 'head'; name another model for other methods", method)
    for name in said:
        require(name in ChosenHead().options(), name, "none for the model 'head'; name another, such as mlp", "one")


@dataclass(frozen=True, eq=False)
class ChosenHead:
    """What cross-validation chose.

    Args:
        prior: Precision λ of the prior on every weight.
        temperature: T of the posterior.
        folds: Predictions out of fold with that prior; None where there was no cross-validation.
    """

    prior: float = PRIOR
    temperature: float = TEMPERATURE
    folds: OutOfFold | None = None

    def options(self) -> dict[str, float]:
        """As `train_head` takes it."""
        return {"prior": self.prior, "temperature": self.temperature}


def choose_head(train: Examples, classes: int, folds: int, seed: int, judging: Tensor | None = None) -> ChosenHead:
    """The prior with the lowest loss out of fold, and the highest temperature that does not raise that loss.

    For each fold the minimum of Σ loss + λ/2 ‖W‖² is found on the other rows; λ goes downhill in steps of √10. The
    posterior around that minimum is the Gaussian with the diagonal precision (h + λ)/T, h_jc = Σᵢ x_ij² p_ic (1 −
    p_ic); the bias has nearly no prior. With many weights and few rows such a mean field is too wide at T = 1;
    predictions averaged over it show how much.

    Args:
        train: The training examples.
        classes: Number of classes C.
        folds: Number of parts; below 2 nothing is chosen.
        seed: Seed of the parts and of the draws.
        judging: Rows whose loss counts; by default all. Rows that a tuned encoder has learnt look too easy. Rows of a
            class that their fold has not learnt never count.
    """
    if folds < 2:
        return ChosenHead()
    x, labels = train.inputs.flatten(1), train.targets
    generator = torch.Generator().manual_seed(seed)
    part = torch.randperm(len(x), generator=generator) % folds
    count = _known(labels, part) if judging is None else _known(labels, part) & judging
    tried: dict[int, list[Regression]] = {}

    def loss(number: int) -> float:
        near = min(tried, key=lambda other: abs(other - number), default=None)
        start = [None] * folds if near is None else tried[near]
        parts = track(range(folds), f"cross-validation, prior {PRIORS[number]:.3g}, part", folds)
        tried[number] = [
            logistic(x[part != k], labels[part != k], classes, PRIORS[number], start[k], _STEPS) for k in parts
        ]
        return F.cross_entropy(_outputs(tried[number], x, part)[count], labels[count]).item()

    number, lowest = _lowest(loss, PRIORS.index(PRIOR), len(PRIORS))
    members, prior = tried[number], PRIORS[number]
    outputs, spread = _outputs(members, x, part), _spread(members, x, part, prior).sqrt()
    noise = torch.randn(_DRAWS, *outputs.shape, generator=generator)
    drawn = ((t, outputs + noise * t**0.5 * spread) for t in TEMPERATURES)
    fine = (t for t, draws in drawn if _averaged_loss(draws[:, count], labels[count]) <= TOLERANCE * lowest)
    average = torch.stack([x @ weights + bias for weights, bias in members]).mean(0)
    found = OutOfFold(outputs, average, _STEPS, lowest, memorises=False)
    return ChosenHead(prior, next(fine, TEMPERATURES[-1]), found)


def train_head(model: nn.Module, train: Examples, target: Classes, *, prior: float, temperature: float) -> Run:
    """Train a linear classifier to its optimum, and put the diagonal Laplace posterior around it, tempered.

    Args:
        model: The network "head", in place.
        train: The training examples.
        target: Their classes.
        prior: Precision λ of the prior on every weight but the bias.
        temperature: T of the posterior.
    """
    begin = time.perf_counter()
    weights, bias = logistic(train.inputs.flatten(1), train.targets, target.outputs, prior)
    name, layer = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(weights.T)
        layer.bias.copy_(bias)
    device = layer.weight.device
    data = (train.inputs.to(device), train.targets.to(device))
    posterior = laplace(
        model.eval(),
        data,
        likelihood=target.likelihood,
        structure="diag",
        prior_precision={f"{name}.weight": prior, f"{name}.bias": BIAS},
        class_names=target.names,
    )
    seconds = time.perf_counter() - begin
    return Run(model, posterior.tempered(temperature), [{"epoch": 1, "seconds": seconds}], "laplace", STEPS, False)


def _lowest(loss: Callable[[int], float], start: int, count: int) -> tuple[int, float]:
    """The first minimum that a walk from `start` finds, or a weaker prior that is as good; and the lowest loss."""
    best, lowest = start, loss(start)
    for direction in (1, -1):
        while 0 <= best + direction < count and (found := loss(best + direction)) < lowest:
            best, lowest = best + direction, found
        if best != start:
            break
    # The head learns from more rows than a fold, and more rows need less of a prior.
    while best > 0 and (found := loss(best - 1)) <= TOLERANCE * lowest:
        best, lowest = best - 1, min(found, lowest)
    return best, lowest


def _known(labels: Tensor, part: Tensor) -> Tensor:
    """Rows whose class occurs in another part, too."""
    homes = torch.zeros(int(labels.max()) + 1, int(part.max()) + 1, dtype=torch.bool)
    homes[labels, part] = True
    return homes.sum(1)[labels] > 1


def _outputs(members: Sequence[Regression], x: Tensor, part: Tensor) -> Tensor:
    """Outputs for each row of the regression that has not learnt from it, (N, C)."""
    found = x.new_empty(len(x), len(members[0][1]))
    for k, (weights, bias) in enumerate(members):
        found[part == k] = x[part == k] @ weights + bias
    return found


def _spread(members: Sequence[Regression], x: Tensor, part: Tensor, prior: float) -> Tensor:
    """Variance of these outputs at T = 1: Σⱼ x_ij² / (h_jc + λⱼ), the bias being the weight of an input of 1."""
    squares = torch.cat([x.square(), x.new_ones(len(x), 1)], 1)
    priors = x.new_tensor([prior] * x.shape[1] + [BIAS]).unsqueeze(1)
    found = x.new_empty(len(x), len(members[0][1]))
    for k, (weights, bias) in enumerate(members):
        probs = (x[part != k] @ weights + bias).softmax(-1)
        curvature = squares[part != k].T @ (probs * (1 - probs))
        found[part == k] = squares[part == k] @ (curvature + priors).reciprocal()
    return found


def _averaged_loss(outputs: Tensor, labels: Tensor) -> float:
    """Loss of the probabilities that draws (S, N, C) of the outputs average to."""
    return F.nll_loss(outputs.softmax(-1).mean(0).clamp_min(1e-12).log(), labels).item()
