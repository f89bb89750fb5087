"""The budget of the noise, and the λ that holds its price."""

import pytest
import torch

from posterity.optim.price import FRESH, Price, opening, progress


def test_the_budget_opens_with_the_steps_and_with_what_has_been_seen_again():
    assert opening(0.0, 10) == 0
    assert opening(1.0, 1000) == pytest.approx(1)
    assert opening(1.0, 1.0) == pytest.approx(FRESH)
    assert opening(0.5, 1000) == pytest.approx(1 / 16)


def test_without_a_length_warm_up_is_not_the_end_and_a_constant_rate_opens():
    assert progress(0.1, 0.1, 0.0) == 0  # the peak so far: warming up
    assert progress(0.0, 1.0, 0.0) == 1  # decayed
    assert progress(1.0, 1.0, 100.0) > 0.99  # constant, after many epochs


def test_lambda_is_the_number_of_effective_parameters_over_twice_the_budget():
    price = Price.of(100, 0.1, torch.device("cpu"))
    squares = torch.tensor(500.0, dtype=torch.float64)
    assert float(price.held(squares, 1.0)) == pytest.approx(2500)
    assert float(price.held(squares, 100.0)) == 100  # never below N
