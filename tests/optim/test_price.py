"""The budget of the noise, and the λ that holds its price."""

import pytest
import torch

from posterity.optim import _meter
from posterity.optim._meter import COLD, Meter, parted
from posterity.optim.price import AJAR, FRESH, MOST, Price, opening, progress


def test_the_budget_opens_with_the_steps_and_with_what_has_been_seen_again():
    assert opening(0.0, 1000) == opening(0.5, 1000) == pytest.approx(AJAR)
    assert opening(0.75, 1000) == pytest.approx(1 / 4)
    assert opening(1.0, 1000) == pytest.approx(1)
    assert opening(1.0, 1.0) == pytest.approx(FRESH)


def test_without_a_length_warm_up_is_not_the_end_and_a_constant_rate_opens():
    assert progress(0.1, 0.1, 0.0) == 0  # the peak so far: warming up
    assert progress(0.0, 1.0, 0.0) == 1  # decayed
    assert progress(1.0, 1.0, 100.0) > 0.99  # constant, after many epochs


def test_lambda_is_the_number_of_effective_parameters_over_twice_the_budget():
    price = Price.of(100, 0.1, torch.device("cpu"))
    squares = torch.tensor(500.0, dtype=torch.float64)
    assert float(price.held(squares, 1.0)) == pytest.approx(2500)
    assert float(price.held(squares, 100.0)) == 100  # never below N


@pytest.mark.parametrize("share", [1.0, 1e-6])
def test_a_price_far_above_that_of_squares_is_believed_where_it_is_no_chance(share):
    price, squares = Price.of(100, 0.05, torch.device("cpu")), torch.tensor(50.0, dtype=torch.float64)
    true, batch, generator = 1000.0, 32, torch.Generator().manual_seed(0)
    for _ in range(200):  # what a network of 1000 effective parameters pays, with the chance of one batch
        price.ess = price.held(squares, share, batch)
        chance = torch.randn((), generator=generator, dtype=torch.float64) * (squares / (price.ess * batch)).sqrt()
        price.pay((true / price.ess + chance) / 2, price.ess)
    if share == 1.0:
        assert float(price.held(squares, share, batch)) == pytest.approx(true / (2 * 0.05), rel=0.1)
    else:  # hardly any noise, whose price cannot be told from chance
        assert float(price.parameters(squares, batch)) <= MOST * 50


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_what_clipping_leaves_is_undone_from_the_first_step_on(steps):
    weights = [torch.zeros(3)]
    plain, clipped = (Meter.of(100, 10, None, 0.1, weights) for _ in range(2))
    for _ in range(steps):
        plain.clip(torch.tensor(1.0))
        clipped.clip(torch.tensor(0.5))
    # Squares of gradients are a quarter of what they were.
    assert float(clipped.examples()) == pytest.approx(4 * float(plain.examples()))
    assert float(plain.examples()) == pytest.approx(10 / (90 / 99 + 10 / float(plain.price.ess)))


def test_steps_count_for_one_over_their_lambda_and_a_start_for_one_over_the_batch():
    meter = Meter.of(100, 10, 50, 0.1, [torch.zeros(3)])
    average, amount, total = 3.0, 1 / 10, 3.0 / 10
    for value, ess in ((1.0, 400.0), (-2.0, 150.0), (5.0, 100.0)):
        meter.price.ess = torch.tensor(ess, dtype=torch.float64)
        average += float(meter.news()) * (value - average)
        amount, total = amount + 1 / ess, total + value / ess
        assert average == pytest.approx(total / amount)
        meter.pay(torch.tensor(0.01), meter.price.ess)


def test_widths_are_looked_at_when_the_noise_begins_and_from_then_on_now_and_then(monkeypatch):
    monkeypatch.setattr(_meter, "REFRESH", 7)
    meter = Meter.of(100, 10, 50, 0.1, [torch.zeros(3)])
    rates = [0.1, 0.3, 0.2] * 20
    assert [k for k, lr in enumerate(rates, 1) if meter.stepped(lr)] == list(range(COLD, 61, 7))
    assert (meter.steps, meter.peak) == (60, 0.3)


@pytest.mark.parametrize("power", [10, 16])
def test_the_factor_of_a_scaler_is_told_from_clipping(power):
    for left in (1.0, 0.6):
        scale, clipping = parted(torch.tensor(left * 2.0**-power))
        assert (float(scale), float(clipping)) == (2.0**power, pytest.approx(left))


@pytest.mark.parametrize(("price", "grows"), [(0.5, 0.9), (1.0, 1.0), (2.0, 1.1)])
def test_a_batch_of_unknown_size_follows_what_noise_costs(price, grows):
    """Squares of gradients are too large by the ratio of their P to the measured one."""
    meter = Meter.of(10_000, None, None, None, [torch.zeros(3)])
    meter.steps, before = COLD + 1, float(meter.scale)
    meter.total = meter.total + 100.0
    meter.price.ess = torch.tensor(1e9, dtype=torch.float64)
    meter.price.per_ess, meter.price.paid = meter.total / 100, meter.total * price
    meter.rescale()
    assert float(meter.scale) == pytest.approx(grows * before, rel=1e-6)
    assert meter.batch == pytest.approx(grows * before, rel=1e-6)
