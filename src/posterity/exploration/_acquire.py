"""`acquire`: what to label next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import expected, require, require_positive, require_seed, require_whole
from posterity.exploration import batch_bald, diverse_margin, information, k_centre
from posterity.exploration.criteria import SCORES
from posterity.exploration.picks import Picks, reasons
from posterity.exploration.question import PoolQuestion, as_labelled, as_pool, ids_of
from posterity.memory.ids import as_ids
from posterity.noise import seeded
from posterity.posterior import FittedModel, Posterior

BATCHES: dict[str, Callable[[PoolQuestion, int], tuple[Tensor, Tensor]]] = {
    "batch_bald": batch_bald.choose,
    "batch_bald_linearised": information.choose,
    "diverse_margin": diverse_margin.choose,
    "k_centre": k_centre.choose,
}
AUTO = "auto"
DRAWN = ("bald", "batch_bald")  # what draws disagree about


def acquire(
    model: nn.Module,
    posterior: Posterior,
    pool: Any,
    k: int,
    criterion: str = "auto",
    *,
    labelled: Any = None,
    exclude: Tensor | Iterable[int] = (),
    power: float | None = None,
    samples: int = 64,
    candidates: int = 4096,
    batch_size: int = 256,
    seed: int = 0,
) -> Picks:
    """Choose the examples of a pool whose labels would teach most.

    Scores of single examples, of which the k highest are taken:
        "entropy": H(y), all uncertainty.
        "margin": 1 − (p₁ − p₂), how close the two likeliest classes are.
        "bald": I(y; θ), the information of the label about the weights, from draws of them.
        "bald_linearised": the same without draws, ½ log det(I + VΛ).
        "leave_one_out": the expected fall of the leave-one-out loss of the labelled data.
        "random": nothing.

    Criteria for batches, in which two copies of an example are not worth twice as much:
        "batch_bald": I(y₁..y_k; θ), greedily.
        "batch_bald_linearised": ½ log det(I + VΛ) of the whole batch, greedily.
        "diverse_margin": close classes, and far from all before: margin times 1 − cos, in the features of the last
            layer.
        "k_centre": each the farthest from all before, in the features of the last layer.

    Args:
        model: The network that the posterior belongs to. It is not changed.
        posterior: Its posterior; criteria without draws need a Gaussian one.
        pool: Inputs without labels: a tensor, an array, a mapping of tensors; or (inputs, targets[, ids]), a Dataset or
            a DataLoader in the order of its data, whose targets are not looked at.
        k: How many to choose.
        criterion: By what; "auto" is "diverse_margin" where targets are classes and "bald" elsewhere.
        labelled: What is labelled already, for "leave_one_out", "k_centre" and "diverse_margin"; by default the
            posterior's memory.
        exclude: Ids that are not to be chosen.
        power: Draw without replacement with probabilities proportional to score^power, instead of taking the highest.
            Diverse batches at no cost, for scores of single examples.
        samples: Draws of the weights; 0 uses the mean weights alone, for criteria that need no disagreement.
        candidates: How many examples both kinds of BatchBALD, and "diverse_margin", look at: those with the highest
            BALD, or margin, of their own.
        batch_size: Examples at a time, where the pool is not a loader.
        seed: Of everything random.

    Returns:
        Ids, scores and reasons, the highest score first.

    Examples:
        >>> import posterity as po
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.0], [1.0]])
        >>> model = nn.Linear(1, 1)
        >>> posterior = po.laplace(model, (x, y), structure="full", prior_precision=1.0, noise_precision=1.0)
        >>> acquire(model, posterior, torch.tensor([[0.0], [3.0], [1.0]]), 2, "bald_linearised").ids
        tensor([1, 2])

    References:
        Kirsch et al., "Stochastic batch acquisition: a simple baseline for deep active learning", 2023 (power).
    """
    known = (AUTO, *SCORES, *BATCHES)
    require(criterion in known, "criterion", f"one of {sorted(known)}", criterion)
    trained = FittedModel.of(model, posterior, as_pool(pool, batch_size))
    if criterion == AUTO:
        criterion = _default(trained.likelihood.is_classification, power)
    require_seed(seed)
    require_whole("samples", samples, 2 if criterion in DRAWN else 0)
    if criterion in DRAWN and posterior.structure.distinct_draws == 1:
        raise expected(
            "criterion", "entropy, margin, k_centre or random: a point estimate has no disagreement", criterion
        )
    require_whole("candidates", candidates)
    if power is not None:
        require_positive("power", power)
        require(criterion in SCORES, "power", f"a score of single examples, one of {sorted(SCORES)}", criterion)
    ids = ids_of(trained.data)
    left = (~torch.isin(ids, as_ids("exclude", exclude))).nonzero()[:, 0]
    if not (isinstance(k, Integral) and 1 <= k <= len(left)):
        raise expected("k", f"a number of examples in 1..{len(left)}, as many as are left", k)
    memory = as_labelled(labelled, posterior.memory, batch_size)
    question = PoolQuestion(trained, left, memory, samples, seed, max(candidates, k))
    if criterion in BATCHES:
        positions, scores = BATCHES[criterion](question, k)
    else:
        positions, scores = highest(SCORES[criterion](question), left, k, power, seed)
    return Picks(criterion, ids[positions], scores, reasons(question, criterion, positions, scores))


def _default(classes: bool, power: float | None) -> str:
    """What "auto" means; a power is one of scores of single examples."""
    if not classes:
        return "bald"
    return "diverse_margin" if power is None else "margin"


def highest(scores: Tensor, left: Tensor, k: int, power: float | None, seed: int) -> tuple[Tensor, Tensor]:
    """The k best of those that are left; with a power, drawn by scores^power without replacement (Gumbel's trick)."""
    order = scores[left]
    if power is not None:
        require(bool((order > 0).any()), "power", "some scores above zero", f"at most {order.max().item():.3g}")
        uniform = torch.rand(len(left), generator=seeded(seed), dtype=torch.float64)
        order = power * order.clamp_min(1e-300).log() - (-uniform.clamp_min(1e-300).log()).log()
    best = left[order.argsort(descending=True, stable=True)[:k]]
    return best, scores[best]
