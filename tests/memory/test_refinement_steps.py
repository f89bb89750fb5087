"""The steps of a refinement, and a table written as parquet."""

import pandas as pd
import pytest
import torch
from torch.func import functional_call, jacrev

import posterity as po
from networks import perceptron
from posterity.memory import memory_map, refinement
from posterity.memory.refinement import ChangedObjective, _along, _quasi_newton, affordable
from posterity.memory.store import to_parquet


def test_steps_obey_the_secant_equation_and_have_the_size_of_the_last_change():
    generator = torch.Generator().manual_seed(0)
    s, y, g = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    y = y * torch.sign(s @ y)
    sigma = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(_quasi_newton(y, [(s, y)], lambda v: sigma * v), s)
    apart = g - (g @ s) / (s @ s) * s
    first = (s @ y) / (y @ (sigma * y)) * sigma * apart  # the first H has the curvature of the last change
    wanted = first - (y @ first) / (s @ y) * s
    torch.testing.assert_close(_quasi_newton(apart, [(s, y)], lambda v: sigma * v), wanted)
    assert torch.equal(_quasi_newton(g, [], lambda v: sigma * v), sigma * g)


class Bowl:
    """The gradient of ½ steepness x²."""

    def __init__(self, steepness):
        self.steepness = steepness

    def gradient(self, x):
        return self.steepness * x


@pytest.mark.parametrize("steepness", [1.0, 1e-3])
@pytest.mark.parametrize(
    ("length", "reached", "tries"),
    [
        (1.5, -0.5, 1),  # the slope at the end is half of that at the start: far enough
        (3.0, 0.0, 2),  # too far, and the secant finds the bottom
        (1.95, 1 - 1.95 / 2, 2),  # a step too long is at least halved
        (100.0, 0.0, 3),  # and at most cut to a tenth
    ],
)
def test_a_step_that_climbs_is_cut_by_the_secant(steepness, length, reached, tries):
    start, direction = torch.ones(1, dtype=torch.float64), torch.tensor([-length], dtype=torch.float64)
    moved, new, used = _along(Bowl(steepness), start, steepness * start, direction, passes=4)
    assert moved.item() == pytest.approx(reached, abs=1e-12)
    assert new.item() == pytest.approx(steepness * moved.item(), abs=1e-15)
    assert used == tries


def test_a_step_is_tried_as_often_as_there_are_passes_left():
    start, direction = torch.ones(1, dtype=torch.float64), torch.tensor([-1e6], dtype=torch.float64)
    assert [_along(Bowl(1.0), start, start, direction, passes)[2] for passes in (1, 2, 4, 9)] == [1, 2, 4, 4]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = perceptron(4, 5, 3).double()
    x = torch.randn(60, 4, dtype=torch.float64)
    data = x, (x[:, 0] > 0).long()
    return memory_map(model, po.laplace(model, data, structure="diag", prior_precision=1.0), data), data


@pytest.mark.parametrize("passes", [1, 3, 10])
def test_no_more_passes_are_made_than_allowed(network, monkeypatch, passes):
    calls, gradient = [], ChangedObjective.gradient
    monkeypatch.setattr(ChangedObjective, "gradient", lambda self, shift: calls.append(1) or gradient(self, shift))
    found = network[0].what_if(remove=range(20), passes=passes)
    assert len(calls) == 1 + passes  # the first one measures the push
    assert found.passes == passes


def test_nothing_is_left_where_nothing_changes(network):
    m, (_, y) = network
    change = m.what_if(relabel={3: y[3].item()}, passes=5)
    assert change.reliability.rest == 0.0
    assert all((t == 0).all() for t in change.parameters.values())


def test_what_is_left_is_a_share_of_a_small_push_too(network):
    """One example of sixty pushes by less than 1 in the norm of the posterior."""
    model_map = network[0]
    left = [model_map.what_if(remove=[7], passes=passes).reliability.rest for passes in (1, 20)]
    assert left[0] > 0.1
    assert 0 < left[1] < 0.2 * left[0]


def test_passes_by_default_are_as_many_as_the_work_allows(network, monkeypatch):
    trained = network[0].trained
    one = 60 * sum(p.numel() for p in trained.model.parameters())
    for work, passes in ((1000 * one, 200), (8 * one, 8), (8 * one - 1, 0)):
        monkeypatch.setattr(refinement, "WORK", work)
        assert affordable(trained, "auto") == passes
    assert affordable(trained, 3) == 3


@pytest.mark.parametrize("passes", [0, 20])
def test_doubts_about_an_outcome_follow_from_its_own_columns(passes):
    torch.manual_seed(0)
    model, x = perceptron(2, 5, 1).double(), torch.randn(30, 2, dtype=torch.float64)
    y = 0.1 * (x[:, :1] * x[:, 1:]).tanh()
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=0.1, noise_precision=100.0)
    m, asked = memory_map(model, posterior, (x, y)), x[:6]
    rows = jacrev(lambda p: functional_call(model, p, (asked,)))(dict(posterior.mean))
    clear = set()
    for k in range(6):
        change = m.what_if(remove=range(5 * k, 5 * k + 5), passes=passes)
        outcome = change.on((asked, y[:6]))
        straight = sum(rows[name].flatten(2) @ t.flatten() for name, t in change.parameters.items())
        bend = ((outcome.change - straight).norm() / outcome.change.norm()).item()
        assert (bend < 1e-12) == (passes == 0)
        assert outcome.reliability == change.reliability.about(outcome.loss_after - outcome.loss_before, bend)
        clear.add(outcome.reliability.clear)
    assert clear == ({True, False} if passes else {True})


def test_parquet_holds_the_columns_alone(tmp_path):
    table = pd.DataFrame({"id": [4, 2], "loss": [0.5, 0.25]}, index=[7, 3])
    to_parquet(table, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table.reset_index(drop=True))
