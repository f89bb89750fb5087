"""What is forgotten of a posterior: its data's share of the natural parameters, and nothing of the prior."""

import pytest
import torch

from posterity.errors import InvalidInput
from posterity.posterior import Diagonal, Memory, Posterior


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


def test_examples_of_a_memory_count_for_what_is_not_forgotten():
    weights = torch.tensor([2.0, 3.0], dtype=torch.float64)
    memory = Memory(torch.zeros(2, 1), torch.zeros(2, 1), torch.arange(2), weights=weights)
    diagonal = Diagonal.isotropic({"w": torch.zeros(1)}, 1.0)
    posterior = Posterior(diagonal, prior=diagonal, n=5, ess=5.0, likelihood="gaussian", memory=memory)
    assert posterior.discounted(0.25).memory.weights.tolist() == [1.5, 2.25]
    assert posterior.memory.weights.tolist() == [2.0, 3.0]
    for forget in (-0.1, 1.1):
        with pytest.raises(InvalidInput, match=r"forget: expected a number in \[0, 1\]"):
            posterior.discounted(forget)
