"""What is forgotten of a posterior: its data's share of the natural parameters, and nothing of the prior."""

import pytest
import torch

from posterity.posterior import Diagonal, Posterior


@pytest.mark.parametrize("forget", [0.0, 0.25, 1.0])
def test_natural_parameters_lie_between_the_posterior_and_its_prior(forget):
    mean = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    precision = {"w": torch.tensor([5.0, 9.0], dtype=torch.float64)}
    prior = Diagonal({"w": torch.full((2,), 0.5, dtype=torch.float64)}, {"w": torch.ones(2, dtype=torch.float64)})
    posterior = Posterior(Diagonal(mean, precision), prior=prior, n=40, ess=40.0, likelihood="gaussian")
    found = posterior.discounted(forget).structure
    wanted = 1 + (1 - forget) * (precision["w"] - 1)
    torch.testing.assert_close(found.precision["w"], wanted)
    linear = 0.5 + (1 - forget) * (precision["w"] * mean["w"] - 0.5)
    torch.testing.assert_close(found.mean["w"], linear / wanted)
