"""How long and how fast an adapted network trains, against the same numbers by hand, and what every step does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from networks import perceptron
from posterity.adaptation.changes import Request
from posterity.adaptation.penalties.quadratic import Slope
from posterity.adaptation.resolve import resolve
from posterity.adaptation.solve import anew, by_descent, warm_start
from posterity.adaptation.solve.schedule import Schedule, longer, noisier
from posterity.adaptation.solve.training import Adam, Settings, training_mode
from posterity.adaptation.solve.warm_start import Corrected, descend, train_on
from posterity.batches import Batch
from posterity.errors import InvalidInput
from posterity.likelihoods import GaussianLikelihood
from posterity.posterior import Diagonal, Posterior, Training
from posterity.trees import snapshot, trainable

N = 200
TRAINING = Training(epochs=30.0, batch_size=50, lr=4e-3)


def trained(pulls, *, training=TRAINING, n=N, classes=3):
    """A network, a posterior whose prior has pulled the means or only decided widths, and data."""
    torch.manual_seed(0)
    model = perceptron(4, 5, classes)
    x = torch.randn(n, 4)
    mean = snapshot(trainable(model))
    centre = {name: torch.zeros_like(m) for name, m in mean.items()} if pulls else mean
    prior = Diagonal(centre, {name: torch.tensor(0.5) for name in mean})
    q = Diagonal(mean, {name: torch.full_like(m, 40.0) for name, m in mean.items()})
    posterior = Posterior.of(model, q, prior=prior, n=n, ess=2 * n, likelihood="categorical", training=training)
    return model, posterior, (x, torch.arange(n) % classes)


def problem(pulls=False, *, method=None, training=TRAINING, n=N, **change):
    model, posterior, data = trained(pulls, training=training, n=n)
    if isinstance(change.get("add"), int):
        change["add"] = (data[0][: change["add"]] + 0.1, data[1][: change["add"]])
    return resolve(model, posterior, Request(data=data, **change), method, 0)


def schedule(found, lost=False, **settings):
    return Schedule.of(found, len(found.all_data()), lost, Settings(**settings))


@pytest.mark.parametrize(
    ("change", "size", "large"),
    [({"remove": [0]}, 1 / 199 / 0.08, 250), ({"add": 10}, 10 / 210 / 0.08, 250), ({"add": 40}, 1.0, 250)],
)
def test_without_a_known_training_steps_and_rate_grow_with_the_change(change, size, large):
    found = schedule(problem(pulls=True, **change))
    assert found.steps == round(100 + size * (large - 100))
    assert found.lr == pytest.approx(1e-3 + size * 2e-3)
    assert (found.batch_size, found.kept, found.halves, found.anew) == (64, 1.0, True, False)
    assert found.training is None


def test_large_changes_of_many_rows_take_five_passes_and_new_classes_twice_as_many():
    many = problem(pulls=True, n=6400, add=640)  # 110 batches of 64
    assert schedule(many).steps == 5 * 110
    assert schedule(problem(pulls=True, remove=[0, 1], classes=5)).steps == 500
    assert schedule(problem(pulls=True, remove=[0], prior_precision=3.0)).steps == 250  # all weights are pulled anew


def test_where_a_class_is_lost_steps_are_small_and_set_out_nearer_to_the_prior():
    found = schedule(problem(pulls=True, add=40), lost=True)
    assert (found.lr, found.kept) == (1e-3, 0.8)


@pytest.mark.parametrize(("change", "rows"), [({"remove": [0]}, 199), ({"add": 1}, 201)])
def test_a_known_training_is_repeated_for_a_share_of_its_length(change, rows):
    size = 1 / rows / 0.08
    found = schedule(problem(**change))
    each = -(-rows // 50)
    assert found.steps == round((0.1 + 0.3 * size) * 30 * each)
    assert found.lr == pytest.approx((0.05 + 0.95 * size) * 4e-3)
    assert (found.batch_size, found.kept, found.halves) == (50, 1.0, False)
    unknown_rate = schedule(problem(training=TRAINING._replace(lr=None), **change))
    assert unknown_rate.lr == pytest.approx((0.05 + 0.95 * size) * 3e-3)  # what `fit` takes for small networks


def test_larger_changes_begin_again_from_mostly_new_weights():
    found = schedule(problem(add=3))  # more than 1 % of the data
    assert found.steps == round(0.65 * 30 * 5)
    assert found.lr == pytest.approx(1.4 * 4e-3)
    assert (found.kept, found.halves, found.training) == (0.2, False, TRAINING)
    assert schedule(problem(remove=[0]), lost=True).kept == 0.2
    assert schedule(problem(add=2)).kept == 1.0
    assert schedule(problem(add=3), epochs=19).kept == 1.0  # 95 steps: too short to begin again
    assert schedule(problem(add=3), epochs=20).kept == 0.2


def test_explicit_settings_override_the_schedule():
    found = schedule(problem(remove=[0]), epochs=3, batch_size=20, lr=0.5)
    assert (found.steps, found.batch_size, found.lr) == (3 * 10, 20, 0.5)


def test_two_trainings_that_are_compared_have_to_differ():
    size = 1 / N / 0.08
    found = Schedule.measuring(problem(remove=[0]), N)
    assert found.steps == max(round((0.05 + 0.65 * size) * 30 * 4), 100)
    assert found.lr == pytest.approx((0.3 + 0.7 * size) * 4e-3)
    many = Schedule.measuring(problem(add=100), N)
    assert (many.steps, many.lr) == (100, pytest.approx(4e-3))
    unknown = Schedule.measuring(problem(pulls=True, remove=[0]), N)
    assert (unknown.steps, unknown.batch_size) == (round(100 + size * 150), 64)


def test_wrong_labels_that_go_count_by_how_little_the_network_believes_them():
    found = problem(remove=list(range(10)))
    x, y = trained(False)[2]
    p = found.old(x).softmax(-1).detach()
    doubt = 1 - p[torch.arange(N), y]
    wrong = (doubt[:10] - doubt[10:].mean()).sum().clamp_min(0).item() / N
    right = (p[10:].argmax(-1) == y[10:]).double().mean().item()
    assert longer(found) == pytest.approx(1 + 0.35 * wrong / (0.01 + 1 - right), rel=1e-5)
    again = problem(relabel={i: int(y[i] + 1) % 3 for i in range(10)})
    wrong = (1 - doubt[10:].mean()).item() * 10 / N
    assert longer(again) == pytest.approx(1 + 0.35 * wrong / (0.01 + 1 - right), rel=1e-5)
    assert longer(problem(add=2)) == 1.0


def regression(change):
    """A line whose last 20 targets are far off, its network, and what becomes of them."""
    torch.manual_seed(0)
    model = perceptron(4, 5, 1)
    x = torch.randn(N, 4)
    y = model(x).detach() + 0.1
    y[-20:] += 0.3
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.full_like(m, 40.0) for name, m in mean.items()})
    prior = Diagonal(mean, {name: torch.tensor(0.5) for name in mean})
    likelihood = GaussianLikelihood(7.0)
    posterior = Posterior.of(model, q, prior=prior, n=N, ess=N, likelihood=likelihood, training=TRAINING)
    wrong = range(N - 20, N)
    asked = {"remove": list(wrong)} if change == "remove" else {"relabel": {i: y[i] - 0.3 for i in wrong}}
    return resolve(model, posterior, Request(data=(x, y), **asked), None, 0)


@pytest.mark.parametrize("change", ["remove", "relabel"])
def test_a_regression_without_its_wrong_targets_trains_longer_with_less_noise(change):
    found = regression(change)
    ratio = (0.9 * 0.1**2 + 0.1 * 0.4**2) / 0.1**2
    assert noisier(found) == pytest.approx(ratio, rel=1e-4)
    plan, each = schedule(found), -(-len(found.all_data()) // 50)
    assert plan.kept == 0.6
    assert plan.steps == round(0.65 * ratio**2 * 30 * each)
    for std in Corrected.of(found).widths.values():
        torch.testing.assert_close(std, torch.full_like(std, (40.0 * ratio) ** -0.5))


def test_a_regression_whose_errors_stay_goes_on_from_its_weights():
    found = regression("remove")
    data = (found.whole.inputs, found.whole.targets)
    far = resolve(found.old, found.posterior, Request(data=data, remove=list(range(20))), None, 0)
    assert noisier(far) == noisier(problem(remove=[0])) == 1.0
    assert schedule(far).kept == 1.0


def test_retraining_takes_as_many_passes_as_the_old_training(monkeypatch):
    taken = []
    monkeypatch.setattr(anew, "descend", lambda model, task, plan, seed, clip: taken.append((plan, task)) or plan.steps)
    found, unknown = problem(remove=[0]), problem(pulls=True, remove=[0])
    for p, settings in ((found, Settings()), (unknown, Settings()), (found, Settings(2, 100, 0.7, seed=3))):
        model, steps = anew.retrained_network(p, Corrected.of(p), settings)
        assert steps == taken[-1][0].steps
        assert taken[-1][1].changed == 0
        assert not torch.equal(model[0].weight, p.old[0].weight)
    plans = [plan for plan, _ in taken]
    assert plans[0] == Schedule(30 * 4, 4e-3, 50, kept=0.0, halves=False, anew=True)
    assert plans[1] == Schedule(2000, 3e-3, 64, anew=True)
    assert (plans[2].steps, plans[2].batch_size, plans[2].lr) == (2 * 2, 100, 0.7)
    monkeypatch.setattr(anew, "STEPS", 10)  # as where there are many examples
    assert anew.retrained_network(unknown, Corrected.of(unknown), Settings())[1] == anew.EPOCHS * 4


def test_parameters_that_were_frozen_are_not_drawn_anew(monkeypatch):
    monkeypatch.setattr(anew, "descend", lambda model, task, plan, seed, clip: 0)
    model, posterior, data = trained(False)
    names = ("2.weight", "2.bias")
    part = Posterior(
        Diagonal({k: posterior.mean[k] for k in names}, {k: posterior.structure.precision[k] for k in names}),
        prior=posterior.prior.restrict(names), n=N, ess=N, likelihood="categorical", training=TRAINING,
    )  # fmt: skip
    model[0].requires_grad_(False)
    found = resolve(model, part, Request(data=data, remove=[0]), "warm_start", 0)
    new, _ = anew.retrained_network(found, Corrected.of(found), Settings())
    assert torch.equal(new[0].weight, model[0].weight)
    assert not torch.equal(new[2].weight, model[2].weight)


@pytest.mark.parametrize(
    ("rows", "settings", "steps"),
    [(100, {}, 500), (128 * 30, {}, 600), (128 * 30 + 1, {}, 620), (0, {}, 500), (300, {"epochs": 2}, 6),
     (300, {"epochs": 2, "batch_size": 100}, 6), (3000, {"batch_size": 10}, 6000)],
)  # fmt: skip
def test_steps_of_a_k_prior_are_twenty_passes_or_five_hundred(rows, settings, steps):
    assert by_descent.steps_on(rows, Settings(**settings)) == steps


def test_weights_that_go_straight_on_get_four_rounds_each_three_times_as_fast():
    """Down a slope Adam moves every weight by the rate a step, ½ lr × steps over a cosine (and a half step more)."""
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    slope = Slope({"weight": torch.tensor([[1.0, -2.0, 0.5]])})
    assert by_descent.settle(model, slope, 10, Settings()) == 40
    moved = 0.5 * 11 * 1e-3 * (1 + 3 + 9 + 27)
    torch.testing.assert_close(model.weight, before - moved * torch.tensor([[1.0, -1.0, 1.0]]), rtol=1e-3, atol=1e-4)
    assert by_descent.settle(model, slope, 10, Settings(lr=1e-3)) == 10
    assert by_descent.settle(model, slope, 10, Settings(epochs=1)) == 10


def test_the_rate_falls_to_zero_along_a_cosine():
    p = nn.Parameter(torch.ones(2))
    adam = Adam([p], 0.4, clip=0.1)
    for done in (0.0, 0.25, 0.5, 1.0):
        p.grad = torch.ones(2)
        adam.begin(done)
        assert p.grad is None
        assert adam.optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * math.cos(math.pi * done / 2) ** 2)
    p.grad = torch.tensor([3.0, 4.0])
    adam.step()
    torch.testing.assert_close(p.grad, torch.tensor([0.06, 0.08]))


def test_running_statistics_stay_unless_weights_are_new():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    training_mode(model)
    assert [m.training for m in model] == [True, False, True]
    training_mode(model, statistics=True)
    assert all(m.training for m in model)


@pytest.mark.parametrize(
    "bad", [{"lr": 0.0}, {"lr": -1.0}, {"epochs": 0}, {"batch_size": 0}, {"clip": 0.0}, {"seed": "a"}]
)
def test_settings_that_cannot_be_are_refused(bad):
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Settings(**bad)


def line(n=40):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 1
    return Batch(x, y, torch.arange(n))


def pulled(data, precision, mean, scale):
    prior = Diagonal({"weight": torch.full((1, 3), mean).double()}, {"weight": torch.tensor(precision).double()})
    return Corrected(data, 0, GaussianLikelihood(2.0), prior, scale)


def ridge(data, precision, mean, scale):
    width = scale * precision * torch.eye(3, dtype=torch.float64)
    right = 2.0 * data.inputs.T @ data.targets + width @ torch.full((3, 1), mean, dtype=torch.float64)
    return torch.linalg.solve(2.0 * data.inputs.T @ data.inputs + width, right).T


@pytest.mark.parametrize("halves", [True, False])
def test_training_on_given_data_ends_at_loss_and_prior(halves):
    """Batches of all rows: the minimum is that of a ridge regression around the prior's mean."""
    data = line()
    task, model = pulled(data, 20.0, 0.7, 1.5), nn.Linear(3, 1, bias=False).double()
    plan = Schedule(500, 0.1, len(data), halves=halves)
    assert descend(model, task, plan, 0) == 500
    torch.testing.assert_close(model.weight, ridge(data, 20.0, 0.7, 1.5), atol=1e-4, rtol=0)
    assert not model.training


def test_steps_that_do_not_help_are_undone_after_one_half():
    data = line()
    task, model = pulled(data, 20.0, 0.7, 1.5), nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(ridge(data, 20.0, 0.7, 1.5))
    best = model.weight.detach().clone()
    assert descend(model, task, Schedule(7, 0.5, 8), 0) == 4
    assert torch.equal(model.weight, best)
    train_on(model, task, Schedule(7, 0.5, 8), 0)  # all steps, whatever they do
    assert not torch.equal(model.weight, best)


def test_networks_learn_in_training_mode():
    class Watched(nn.Linear):
        def forward(self, x):
            modes.append(self.training)
            return super().forward(x)

    modes: list[bool] = []
    model = Watched(3, 1, bias=False).double().eval()
    train_on(model, pulled(line(), 1.0, 0.0, 1.0), Schedule(3, 0.1, 8), 0)
    assert modes == [True] * 3
    assert not model.training


def test_weights_of_examples_multiply_their_losses():
    data = line()
    weights = torch.arange(40.0).double()
    task, model = pulled(data, 1.0, 0.0, 1.0), nn.Linear(3, 1, bias=False).double()
    rows = torch.tensor([3, 17])
    plain = task.losses(model, rows)
    wanted = GaussianLikelihood(2.0).loss(model(data.inputs[rows]), data.targets[rows])
    torch.testing.assert_close(plain, wanted)
    task = Corrected(data, 0, task.likelihood, task.prior, 1.0, weights=weights)
    torch.testing.assert_close(task.losses(model, rows), torch.tensor([3.0, 17.0]).double() * wanted)


def test_a_part_of_many_rows_represents_all_of_them(monkeypatch):
    monkeypatch.setattr(warm_start, "LOOKED_AT", 8)
    one = line(1)
    many = Batch(one.inputs.expand(40, -1), one.targets.expand(40, -1), torch.arange(40))
    task, model = pulled(many, 3.0, 0.7, 1.5), nn.Linear(3, 1, bias=False).double()
    loss = 40 * GaussianLikelihood(2.0).loss(model(one.inputs), one.targets).item()
    pull = 0.5 * 1.5 * 3.0 * (model.weight - 0.7).square().sum().item()
    assert task.value(model) == pytest.approx(loss + pull)


@pytest.mark.parametrize(("changed", "few"), [(20, 8), (3, 3), (0, 0), (300, 0), (1000, 0)])
def test_changed_rows_are_in_every_batch_where_they_would_be_rare(changed, few):
    x = torch.zeros(1000, 1)
    task = Corrected(Batch(x, x, torch.arange(1000)), changed, GaussianLikelihood(), None, 1.0)
    for rows, shares in task.batches(64, 5, 0):
        assert len(rows) == len(shares) == 64
        if few:
            assert int((rows >= 1000 - changed).sum()) == few
            assert shares[rows >= 1000 - changed].sum().item() == pytest.approx(changed / 1000)
        else:
            assert torch.equal(shares, torch.full((64,), 1 / 64))


def test_batches_go_through_the_rows_in_another_order_each_pass():
    x = torch.zeros(10, 1)
    task = Corrected(Batch(x, x, torch.arange(10)), 0, GaussianLikelihood(), None, 1.0)
    rows = [rows.tolist() for rows, _ in task.batches(3, 6, 0)]
    for first in (0, 3):
        one = [row for part in rows[first : first + 3] for row in part]
        assert len(set(one)) == len(one) == 9
    assert rows[:3] != rows[3:]
    assert [rows.tolist() for rows, _ in task.batches(3, 6, 0)] == rows
    assert [len(rows) for rows, _ in task.batches(64, 2, 0)] == [10, 10]


def test_what_changed_is_what_was_added_or_relabelled():
    assert Corrected.of(problem(remove=[0])).changed == 0
    assert Corrected.of(problem(add=7)).changed == 7
    found = Corrected.of(problem(relabel={3: 2}))
    assert found.changed == 1
    assert found.data.ids[-1] == 3
    assert found.data.targets[-1] == 2


def test_noise_is_as_wide_as_the_old_posterior_and_new_outputs_as_the_others():
    assert Corrected.of(problem(pulls=True, remove=[0])).widths == {}
    found = Corrected.of(problem(remove=[0], classes=5)).widths
    assert found["2.weight"].shape == (5, 5)
    torch.testing.assert_close(found["2.weight"], torch.full((5, 5), 40.0**-0.5))
    torch.testing.assert_close(found["0.bias"], torch.full((5,), 40.0**-0.5))


def test_the_prior_that_pulls_depends_on_the_way():
    warm, prior = problem(remove=[0]), problem(method="kprior", remove=[0])
    assert all((p == 0).all() for p in warm.pulling.precision.values())
    assert prior.pulling is prior.prior
    pulls = problem(pulls=True, remove=[0])
    assert pulls.pulling is pulls.prior
    wider = problem(method="kprior", add=2, into=perceptron(4, 7, 3))
    found = {name: float(p.max()) for name, p in wider.pulling.precision.items()}
    assert found == {"0.weight": 0.5, "0.bias": 0.5, "2.weight": 0.0, "2.bias": 0.5}
    assert wider.other_model()
    assert not warm.other_model()
    half = problem(method="kprior", add=2).forgetting(0.25)
    assert {float(p.max()) for p in half.pulling.precision.values()} == {0.375}
    assert half.n == round(0.75 * N) + 2
