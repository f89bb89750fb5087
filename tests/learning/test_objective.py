"""The loss of `fit` against torch's own, option by option."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from posterity.errors import InvalidInput
from posterity.learning.objective import Objective, infer_likelihood
from posterity.likelihoods import likelihood

CATEGORICAL = likelihood("categorical")
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 4.0])


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [None, -100, 2])
@pytest.mark.parametrize("shape", [(20,), (4, 5, 6)])
def test_cross_entropy_with_every_option(weights, smoothing, ignore, shape):
    f = torch.randn(shape[0], 4, *shape[1:], generator=torch.Generator().manual_seed(1))  # maps: classes on axis 1
    y = torch.randint(4, shape, generator=torch.Generator().manual_seed(2))
    if ignore is not None:
        y[torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.3] = ignore
    objective = Objective(CATEGORICAL, weights, smoothing, ignore)
    ours = objective.total(f, y) / objective.mass(y)
    theirs = F.cross_entropy(
        f, y, weight=weights, label_smoothing=smoothing, ignore_index=-7 if ignore is None else ignore
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
def test_labels_of_every_integer_type(dtype):
    f = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))  # as many examples as classes, as a mask has
    y = torch.tensor([3, 1, 0, 1])
    objective = Objective(CATEGORICAL, WEIGHTS, 0.1)
    objective.check(f, y.to(dtype))
    ours = objective.total(f, y.to(dtype)) / objective.mass(y.to(dtype))
    torch.testing.assert_close(ours, F.cross_entropy(f, y, weight=WEIGHTS, label_smoothing=0.1))


def test_class_probabilities_as_targets():
    f = torch.randn(20, 4)
    y = torch.softmax(torch.randn(20, 4), -1)
    objective = Objective(CATEGORICAL, WEIGHTS, 0.1)
    theirs = F.cross_entropy(f, y, weight=WEIGHTS, label_smoothing=0.1)
    torch.testing.assert_close(objective.total(f, y) / objective.mass(y), theirs)


def test_other_likelihoods_are_means_over_examples():
    f, y = torch.randn(20, 3), torch.randn(20, 3)
    gaussian = Objective(likelihood("gaussian", precision=4.0))
    normal = torch.distributions.Normal(f, 0.5)
    torch.testing.assert_close(gaussian.total(f, y) / gaussian.mass(y), -normal.log_prob(y).sum(-1).mean())
    binary = Objective(likelihood("bernoulli"))
    labels = (y > 0).long()
    theirs = F.binary_cross_entropy_with_logits(f, labels.float(), reduction="sum") / 20
    torch.testing.assert_close(binary.total(f, labels) / binary.mass(labels), theirs)


def test_counts_of_what_is_right():
    f = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    ignoring = Objective(CATEGORICAL, ignore_index=-1)
    y = torch.tensor([0, 0, -1])
    assert (ignoring.correct(f, y), ignoring.count(y)) == (1, 2)
    gaussian = Objective(likelihood("gaussian"))
    assert gaussian.correct(torch.ones(2, 1), torch.tensor([[1.0], [3.0]])) == 4
    assert Objective(likelihood("poisson")).correct(f, f) is None


@pytest.mark.parametrize(
    ("f", "y", "name"),
    [
        (torch.zeros(5, 3), torch.zeros(5).long(), "categorical"),
        (torch.zeros(5, 7, 3), torch.zeros(5, 7).long(), "categorical"),
        (torch.zeros(5, 3, 7, 7), torch.zeros(5, 7, 7).long(), "categorical"),
        (torch.zeros(5, 2), torch.zeros(5, 2).long(), "bernoulli"),
        (torch.zeros(5, 1), torch.zeros(5, 1).bool(), "bernoulli"),
        (torch.zeros(5, 2), torch.zeros(5, 2), "gaussian"),
    ],
)
def test_likelihood_by_types_and_shapes(f, y, name):
    assert infer_likelihood(f, y).name == name


def test_options_that_do_not_fit():
    with pytest.raises(InvalidInput, match=r"label_smoothing: expected a number in \[0, 1\), got 1.5"):
        Objective(CATEGORICAL, label_smoothing=1.5)
    for option in ({"label_smoothing": 0.1}, {"ignore_index": 0}, {"class_weights": torch.ones(2)}):
        with pytest.raises(InvalidInput, match=r"expected a categorical likelihood beside it, got 'gaussian'"):
            Objective(likelihood("gaussian"), **option)
    with pytest.raises(InvalidInput, match="class_weights: expected 3 weights, one a class, got 4"):
        Objective(CATEGORICAL, WEIGHTS).check(torch.zeros(2, 3), torch.zeros(2).long())
    with pytest.raises(InvalidInput, match="at least two logits for a categorical likelihood"):
        Objective(CATEGORICAL).check(torch.zeros(2, 1), torch.zeros(2).long())
    with pytest.raises(InvalidInput, match=r"labels of shape \(5,\)"):
        infer_likelihood(torch.zeros(5, 3), torch.zeros(4).long())
