"""Estimators at their edges: inputs of another precision or width, whole statistics, fractions of samples."""

import pytest
import torch

from posterity.errors import InvalidInput
from posterity.families import Gaussian
from posterity.gradients import (
    ConjugateLoss,
    Delta,
    DropoutMasks,
    LinearLoss,
    MonteCarlo,
    Quadrature,
    RelaxedBernoulli,
    ScoreFunction,
)

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(20, 3, generator=GENERATOR)
LABELS = (torch.rand(20, generator=GENERATOR) < 0.5).float()


@pytest.mark.parametrize("estimator", [Delta(), Quadrature(5)])
def test_linear_losses_take_the_precision_of_theta(estimator):
    single = LinearLoss(inputs=INPUTS, targets=LABELS, likelihood="bernoulli")
    double = LinearLoss(inputs=INPUTS.double(), targets=LABELS.double(), likelihood="bernoulli")
    q = Gaussian.standard(3)
    for ours, exact in zip(estimator(q, single), estimator(q, double), strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, exact, rtol=1e-14, atol=1e-14)
    with pytest.raises(InvalidInput, match="3 entries, as the inputs have columns"):
        estimator(Gaussian.standard(4), single)


def test_whole_statistics_are_added_exactly():
    (total,) = ConjugateLoss.of(torch.tensor([2**24, 1])).statistics
    assert total.item() == 2**24 + 1


@pytest.mark.parametrize("estimator", [MonteCarlo, Quadrature, RelaxedBernoulli, ScoreFunction, DropoutMasks])
def test_half_a_sample_is_refused(estimator):
    with pytest.raises(InvalidInput, match="whole number"):
        estimator(**{"nodes" if estimator is Quadrature else "samples": 2.5})
