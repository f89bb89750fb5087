"""The rule's films: one for every row of Table 1, whose code reaches its numbers; bad settings are refused."""

from __future__ import annotations

import itertools

import pytest
import torch

from posterity import algorithms, families, gradients
from posterity.app.rule.catalogue import asked, catalogue
from posterity.app.rule.choice import FAMILIES, Choice
from posterity.app.rule.landscapes import LANDSCAPES
from posterity.app.rule.optimizers import MOVERS
from posterity.app.rule.presets import PRESETS, TOURS
from posterity.app.rule.running import film, steps
from posterity.app.rule.words import code
from posterity.errors import InvalidInput
from posterity.rule import BayesianLearningRule
from posterity.table import ROWS

RUN = {name: one for name, one in PRESETS.items() if one.choice and one.choice.estimator not in MOVERS}


def reached(source, choice):
    """q after running the code that the page shows."""
    names = {**vars(gradients), **vars(families), **{name: getattr(algorithms, name) for name in algorithms.__all__}}
    names |= {"BayesianLearningRule": BayesianLearningRule, "q": choice.begin(), "loss": choice.total()}
    names |= {"theta": choice.theta, "generator": torch.Generator().manual_seed(choice.seed)}
    exec(source, names)
    return names["q"]


def test_every_row_of_the_table_has_a_preset():
    assert {row for one in PRESETS.values() for row in one.rows} == {row.name for row in ROWS}
    assert {name for _, names, _ in TOURS for name in names} <= set(PRESETS)
    for one in catalogue()["presets"].values():
        assert one["equations"], one["title"]
        assert one["code"], one["title"]


@pytest.mark.parametrize("name", RUN)
def test_the_code_beside_a_preset_reaches_its_numbers(name):
    one = RUN[name]
    few = one.choice.but({"steps": min(one.choice.steps, 6)})
    *_, last = steps(few)
    for source in {one.public()["code"].replace(f"steps={one.choice.steps}", f"steps={few.steps}"), code(few)}:
        q = reached(source, few)
        for ours, theirs in zip(last.natural, q.natural, strict=True):
            if name != "laplace" or "laplace(" not in source:  # which runs until it rests
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_newton_is_done_in_one_step_and_gaussian_vi_ends_at_its_optimum():
    loss = LANDSCAPES["quadratic"].make(())
    end = asked({"preset": "newton"})
    assert end["means"][1][0] == pytest.approx([0.8, -0.4], abs=1e-9)
    hessian = torch.autograd.functional.hessian(loss, torch.zeros(2).double())
    flat = torch.linalg.inv(hessian).reshape(-1)[[0, 1, 3]].tolist()
    assert end["covariances"][1][0] == pytest.approx(flat, rel=1e-5)
    choice = PRESETS["vi-logistic"].choice.but({"steps": 60})
    q = reached(code(choice), choice)
    still = BayesianLearningRule(gradients.Quadrature(16)).natural_gradient(q, choice.total())
    assert max(float(block.abs().max()) for block in still) < 1e-5


def test_bayes_leaves_the_narrow_valley_and_sam_follows_its_radius():
    bayes, sam = PRESETS["bayes-valleys"].film(), PRESETS["sam"].film()
    assert bayes.frames[0].means[0][0] == sam.frames[0].means[0][0] == -1.0
    assert bayes.frames[-1].means[0][0] > 0.75
    assert abs(sam.frames[-1].means[0][0] - 1.0) < 0.2
    point = film(PRESETS["sam"].choice.but({"estimator": "delta", "lr": 1e-3}))
    assert abs(point.frames[-1].means[0][0] + 1.0) < 0.05  # gradient descent stays in the hole
    near = film(PRESETS["sam"].choice.but({"radius": 0.01, "lr": 1e-3}))
    assert abs(near.frames[-1].means[0][0] + 1.0) < 0.1


def test_straight_through_is_shown_by_what_it_minimises():
    """It has no entropy: its measure is the expected loss, and τ does not appear in it."""
    made = asked({"preset": "straight-through"})
    loss, choice = LANDSCAPES["signs"].make(()), PRESETS["straight-through"].choice
    corners = torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64)
    expected = sum(p * loss(corner) for p, corner in zip(made["masses"][5], corners, strict=True))
    assert made["measure"] == "expected loss E[ℓ]"
    assert made["energy"][5] == pytest.approx(float(expected), abs=1e-4)
    assert choice.but({"temperature": 3.0}).entropy == 0.0


def test_evon_finds_the_correlation_that_ivon_cannot_hold():
    bend = torch.linalg.inv(torch.tensor([[3.0, 1.5], [1.5, 1.1]]))
    ivon, evon = (PRESETS[name].film().frames[-1].covariances[0] for name in ("ivon-quadratic", "evon"))
    assert evon == pytest.approx(bend.reshape(-1)[[0, 1, 3]].tolist(), rel=0.1)
    assert ivon[1] == 0.0
    assert ivon[2] < 0.5 * evon[2]  # mean field is narrower


@pytest.mark.parametrize("name", ["vadam", "variational"])
def test_optimizers_end_near_gaussian_vi(name):
    end, vi = (PRESETS[one].film().frames[-1] for one in (name, "vi-logistic"))
    assert torch.dist(torch.tensor(end.means[0]), torch.tensor(vi.means[0])) < 0.5
    assert end.energy < vi.energy + 0.4


def test_bsam_leaves_the_narrow_valley():
    assert abs(PRESETS["bsam"].film().frames[-1].means[0][0] - 1.0) < 0.3


def test_three_ways_to_keep_the_past_are_the_posterior_of_all_data():
    made = asked({"preset": "ewc-kprior-fromp"})
    data = torch.tensor(made["data"], dtype=torch.float64)
    rows = torch.stack((torch.ones(len(data)), data[:, 0]), 1)
    whole = algorithms.linear_regression(rows, data[:, 1], prior_precision=0.5, noise_precision=8.0)
    assert made["means"][-1][0] == pytest.approx(whole.mean.tolist(), rel=1e-5)
    assert made["covariances"][-1][0] == pytest.approx(whole.covariance.reshape(-1)[[0, 1, 3]].tolist(), rel=1e-5)
    apart = [float(note.split()[-1]) for note in made["note"] if "differ" in note]
    assert all(value < 1e-9 for value in apart)


def test_averaging_over_ripples_reaches_the_end_of_the_valley():
    smooth, stuck = PRESETS["bayes-ridge"].film().frames[-1], PRESETS["descent-ridge"].film().frames[-1]
    end = torch.tensor([1.2, 1.2]) / 2**0.5
    assert torch.dist(torch.tensor(smooth.means[0]), end) < 0.15
    assert torch.dist(torch.tensor(stuck.means[0]), end) > 1.0


def test_a_mixture_has_a_component_in_each_mode():
    left, right = sorted(PRESETS["mixture-vi"].film().frames[-1].means)
    assert left == pytest.approx([-1.5, 0.3], abs=0.4)
    assert right == pytest.approx([1.5, -0.3], abs=0.4)


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if one.make])
def test_films_of_other_models_are_whole(name):
    made = asked({"preset": name})
    assert made["steps"] >= 8
    assert any(key in made for key in ("density", "means", "lines"))
    assert all(len(made[key]) == made["steps"] + 1 for key in ("means", "density", "lines", "note") if key in made)
    if "energy" in made:  # bounds only rise
        values = [v for v in made["energy"] if v is not None]
        assert all(after <= before + 1e-4 * abs(before) for before, after in itertools.pairwise(values))


def test_all_families_and_estimators_run():
    for family, (_, estimators) in FAMILIES.items():
        for estimator in estimators:
            loss = "signs" if family == "signs" else "logistic"
            made = film(Choice(loss=loss, family=family, estimator=estimator, lr=0.05, steps=2))
            assert len(made.frames) == 3


def test_dragged_points_change_the_loss():
    points = [[-1.0, -1.0], [1.0, 1.0]]
    moved = asked({"preset": "linear-regression", "changes": {"points": points}})
    rows = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    slope = torch.linalg.solve(
        4.0 * rows.T @ rows + 0.5 * torch.eye(2), 4.0 * rows.T @ torch.tensor([-1.0, 1.0]).double()
    )
    assert moved["means"][-1][0] == pytest.approx(slope.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": "fast"}, "lr: expected a finite number"),
        ({"family": "signs"}, "estimator of the family 'signs'"),
        ({"estimator": "dropout"}, "estimator"),
        ({"nonsense": 1}, "setting"),
        ({"points": [[0.0, 0.0]]}, "points"),
        ({"start": [1.0]}, "start: expected 2 numbers"),
        ({"steps": 10**9}, "steps"),
        ({"estimator": "evon", "loss": "valleys"}, "loss of EVON"),
        ({"family": "diagonal", "estimator": "variational"}, "one with data"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, said):
    with pytest.raises(InvalidInput, match=said):
        asked({"preset": "newton", "changes": changes})


def test_unknown_presets_and_fixed_films_are_refused():
    with pytest.raises(InvalidInput, match="preset: expected one of"):
        asked({"preset": "nonsense"})
    with pytest.raises(InvalidInput, match="whose data and model are fixed"):
        asked({"preset": "kalman-filter", "changes": {"lr": 0.5}})
