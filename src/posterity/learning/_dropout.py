"""MC dropout: Bernoulli masks on activations, kept on when predicting."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from posterity.learning.dropout_layers import dropout_rates, insert_dropout
from posterity.learning.learners._base import as_prior
from posterity.likelihoods import Likelihood
from posterity.posterior import Dropout, Posterior
from posterity.trees import snapshot, trainable


def dropout(
    model: nn.Module,
    *,
    likelihood: str | Likelihood,
    n: int,
    p: float | None = None,
    after: Sequence[str] | None = None,
    prior: float = 1.0,
    class_names: Sequence[str] | None = None,
) -> Posterior:
    """The MC-dropout posterior of a trained model.

    Weight averaging, for comparison, is the same model in evaluation mode: `po.predict(..., samples=0)`.

    Args:
        model: A trained model, with dropout modules or about to get some.
        likelihood: What its outputs mean.
        n: Number of training examples.
        p: Where given, dropout of this rate is inserted first, in place (see `insert_dropout`).
        after: Where to insert it.
        prior: Precision of the Gaussian prior that weight decay was equivalent to.
        class_names: Names of the classes.

    Returns:
        A posterior of structure `Dropout`.

    References:
        Gal and Ghahramani, "Dropout as a Bayesian approximation", 2016.
    """
    if p is not None:
        insert_dropout(model, p, after)
    structure = Dropout(snapshot(trainable(model)), dropout_rates(model))
    return Posterior.of(
        model, structure, prior=as_prior(model, prior), n=n, ess=n, likelihood=likelihood, class_names=class_names
    )
