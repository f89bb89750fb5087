"""Scores of single examples that others use, from the same pass: the baselines of every comparison.

Each takes the dual of a batch, and the batch, and gives one number for each example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posterity.batches import Batch, batches
from posterity.curvature import per_example_gradient_norms, pullback, pushforward
from posterity.errors import expected
from posterity.likelihoods import Likelihood
from posterity.memory._dual import Dual
from posterity.memory.perturbation import contains_examples, deflation
from posterity.posterior import FittedModel
from posterity.progress import track
from posterity.trees import Tree

Score = Callable[[Dual, Batch], Tensor]


def loss(dual: Dual, batch: Batch) -> Tensor:
    """−log p(y | f). Large: badly predicted."""
    return dual.likelihood.loss(dual.outputs, dual.targets)


def margin(dual: Dual, batch: Batch) -> Tensor:
    """f_y − max_{k≠y} f_k. Negative: another class is preferred."""
    return dual.likelihood.margin(dual.outputs, dual.targets)


def self_confidence(dual: Dual, batch: Batch) -> Tensor:
    """p(y | f), the probability of the given label. Small: suspicious."""
    return confidence_of(dual.likelihood, dual.outputs, dual.targets)


def cook(dual: Dual, batch: Batch) -> Tensor:
    """Cook's distance ΔθᵀΣ⁻¹Δθ / P of the weights with and without the example. Large: influential.

    With u = (I − ΛV)⁻¹e the numerator is uᵀVu; for linear regression this is r²h / (P s²(1 − h)²). Where the
    covariance does not contain the example, u = e.
    """
    u = dual.residual
    if contains_examples(dual.trained.posterior):
        u = torch.linalg.solve(deflation(dual.variance, dual.curvature).mT, u)
    parameters = sum(dual.trained.posterior.mean[name].numel() for name in dual.trained.covariance.names)
    return torch.einsum("nk,nkl,nl->n", u, dual.variance, u) / parameters


def tracin(dual: Dual, batch: Batch) -> Tensor:
    """‖∇ℓ_i‖² at these weights: TracIn of an example with itself, for one checkpoint and learning rate 1."""
    norms = per_example_gradient_norms(dual.trained.model, batch, dual.likelihood)
    return norms.double().square()


SCORES: dict[str, Score] = {
    "loss": loss,
    "margin": margin,
    "self_confidence": self_confidence,
    "cook": cook,
    "tracin": tracin,
}


def score(name: str) -> Score:
    """A score by name."""
    if name not in SCORES:
        raise expected("scores", f"names among {sorted(SCORES)}", name)
    return SCORES[name]


def test_loss_direction(trained: FittedModel, test: Any, batch_size: int) -> Tree:
    """Σ ∇L_test, L_test the mean loss of test data: where the weights would have to go to make it worse."""
    stream = batches(test, batch_size=batch_size)
    names = trained.covariance.names
    total: Tree = {}
    for batch in track(stream, "test gradient", total=len(stream)):
        batch = batch.to(trained.device)
        f = trained.outputs(batch.inputs)
        e = trained.likelihood.residual(f, trained.targets(f, batch.targets)) / stream.n
        found = pullback(trained.model, batch.inputs, e, names)
        total = {name: found[name] + total[name] if total else found[name] for name in names}
    return trained.covariance.times(total)


def influence(trained: FittedModel, batch: Batch, direction: Tree) -> Tensor:
    """∇L_testᵀ Σ ∇ℓ_i, the influence function: to first order, how the mean test loss changes without example i.

    Positive: the example helps. `direction` is Σ ∇L_test, so that one tangent pass is enough for a whole batch.
    """
    f = trained.outputs(batch.inputs)
    e = trained.likelihood.residual(f, trained.targets(f, batch.targets))
    return (e * pushforward(trained.model, batch.inputs, direction)).sum(-1).double()


def confidence_of(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """The probability of the given label."""
    if not likelihood.is_classification:
        raise likelihood.undefined("self_confidence")
    return (-likelihood.loss(f, y)).exp()
