"""Kernels of `Variational` over Adam against plain tensor operations: the budget that follows the gap."""

import pytest
from torch.optim import Adam

from optim.agreement_of_adam import STEPS, assert_alike, over, train, used
from posterity.optim import gap
from posterity.optim._meter import COLD


def test_rows_that_are_watched_leave_what_the_gap_is_worth():
    one, other = (over(fused, own={"total_steps": STEPS + 2}) for fused in (None, False))
    for optimizer, model in (one, other):
        optimizer.meter.taught.fill_(1e6)  # in the first half
        optimizer.meter.settled.fill_(1e4)
        train(optimizer, model, watched=0.003)
    assert used(one[0])
    assert_alike(one, other)
    meter = other[0].meter
    assert float(meter.price.ess) < 0.5 * float(meter.parameters) / (2 * 0.003)


@pytest.mark.parametrize("settings", [{}, {"base": Adam, "weight_decay": 0.1}], ids=["AdamW", "L2"])
def test_matrices_alone_tell_what_larger_weights_would_gain(settings):
    """The vector of one number would gain or lose most."""
    one, other = over(None, **settings), over(False, **settings)
    for optimizer, model in (one, other):
        model.weights[1].data.fill_(40.0)
        train(optimizer, model)
    assert used(one[0])
    assert_alike(one, other)
    told, model = float(one[0].meter.growing), one[1]
    average = one[0].bases[0].state[model.weights[1]]["exp_avg"]
    assert 0 < abs(told) < 0.1 * abs(float(40.0 * average))


def test_a_network_that_learns_late_gets_less_noise():
    one, other = (over(fused, own={"total_steps": STEPS + 2}) for fused in (None, False))
    for optimizer, model in (one, other):
        optimizer.meter.taught.fill_(1e6)  # in the first half
        optimizer.meter.settled.fill_(25.0)
        train(optimizer, model)
    assert used(one[0])
    assert_alike(one, other)
    meter = other[0].meter
    assert gap.LEAST / gap.MOST < float(meter._open(1.0, 1.0, 100.0)) < 0.9


@pytest.mark.parametrize("watched", [None, 0.003], ids=["alone", "watched"])
def test_noise_that_meets_less_curvature_than_promised_is_less(watched):
    one, other = (over(fused, own={"total_steps": STEPS + 2}) for fused in (None, False))
    for optimizer, model in (one, other):
        optimizer.meter.taught.fill_(1e6)  # in the first half
        optimizer.meter.settled.fill_(1e4)
        optimizer.meter.price.per_ess.fill_(1.0)  # much was told, and nothing was paid
        train(optimizer, model, watched=watched)
    assert used(one[0])
    assert_alike(one, other)
    meter = other[0].meter
    assert 0 < float(meter.price.agreement(meter.total, meter.batch)) < 0.9


def test_a_network_far_from_fitted_gets_less_noise():
    """Three looks fall into the third quarter of training, and one comes later."""
    one, other = (over(fused, own={"total_steps": 36}) for fused in (None, False))
    for optimizer, model in (one, other):
        optimizer.meter.taught.fill_(1e6)  # in the first half
        optimizer.meter.settled.fill_(1e4)
        optimizer.meter.price.per_ess.fill_(1.0)  # much was told, and as much was paid as gradients promise
        optimizer.meter.price.paid.fill_(100.0)
        optimizer.meter.growing.fill_(1.25 * gap.GROWING)
        optimizer.meter.looks.fill_(999.0)
        train(optimizer, model, steps=COLD + 9)
    assert used(one[0])
    assert_alike(one, other)
    meter = other[0].meter
    assert float(meter.looks) == 1002
    assert gap.LEAST / gap.MOST < float(meter._open(1.0, 1.0, 100.0)) < 0.9
