"""`Variational` refuses what cannot work, warns of what is probably wrong, and leaves the weights at the mean."""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import posterity as po
from networks import perceptron
from posterity.errors import InvalidInput
from posterity.optim import IVON, Variational
from posterity.optim._meter import TOO_LARGE


def one():
    return nn.Parameter(torch.ones(3))


class ByClosure(Optimizer):
    """Steps from a closure alone."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure):
        return closure()


class ByClosureAfterAll(ByClosure):
    """The same, which its signature does not tell."""

    def step(self, closure=None):
        if closure is None:
            raise ValueError("a closure is needed")
        return closure()


def shared_memory():
    weight = one()
    return [SGD([weight], lr=0.1), SGD([nn.Parameter(weight.data[:2])], lr=0.1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Variational([], n=10), "an empty list"),
        (lambda: Variational("adamw", n=10), "expected a torch.optim.Optimizer, got 'str'"),
        (lambda: Variational(IVON([one()], lr=0.1, ess=10), n=10), "without a posterior of its own"),
        (lambda: Variational(torch.optim.LBFGS([one()]), n=10), "without a closure, got LBFGS"),
        (lambda: Variational(AdamW([one()]), n=10, total_steps=0), "total_steps: expected"),
        (lambda: Variational(AdamW([one()]), n=10, prior=1.0), "weight_decay=0"),
        (lambda: Variational(AdamW([{"params": []}]), n=10), "base: expected at least one parameter"),
        (lambda: Variational([AdamW([one()]), SGD([{"params": []}])], n=10), "base: expected at least one parameter"),
        (lambda: Variational(shared_memory(), n=10), "do not share memory"),
        (lambda: Variational(SGD([nn.Parameter(torch.ones(3) * 1j)]), n=10), "real floating-point"),
        (lambda: Variational(ByClosure([one()]), n=10), "without a closure, got ByClosure"),
        (lambda: Variational(torch.optim.SparseAdam([one()]), n=10), "dense gradients"),
        *((lambda n=n: Variational(AdamW([one()]), n=n), "n: expected a positive") for n in (0, -1, math.nan, "10")),
        *(
            (lambda b=b: Variational(AdamW([one()]), n=9, budget=b), "budget: expected")
            for b in (0, -1, math.nan, "0.1")
        ),
        *((lambda b=b: Variational(AdamW([one()]), n=9, batch_size=b), "batch_size: expected") for b in (0, -1, 1.5)),
        (lambda: Variational(AdamW([one()]), n=9, batch_size=64), "at most n=9, counted in the same examples"),
        (lambda: Variational(AdamW([one()]), n=9, scaler=1024.0), "scaler: expected a GradScaler"),
        (lambda: Variational(AdamW([one()]), n=9, fused="yes"), "fused: expected True or False"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_parameter_in_two_bases_is_refused():
    weight = one()
    with pytest.raises(InvalidInput, match="each parameter in one optimizer"):
        Variational([AdamW([weight]), SGD([weight], lr=0.1)], n=10)


def test_a_parameter_twice_in_one_base_is_refused():
    weight = one()
    with pytest.warns(UserWarning, match="duplicate parameters"):  # torch's own
        base = AdamW([weight, weight])
    with pytest.raises(InvalidInput, match="each parameter once, got '1 of them twice'"):
        Variational(base, n=10)


def test_an_empty_state_dict_is_refused():
    with pytest.raises(InvalidInput, match="one of Variational, over AdamW"):
        Variational(AdamW([one()]), n=10).load_state_dict({})


def train(optimizer, model, loss, batches):
    for x, y in batches:
        with optimizer.sampled_params(train=True):
            loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_base_that_raises_leaves_the_weights_at_the_mean():
    weight = one()
    optimizer = Variational(ByClosureAfterAll([weight]), n=10)
    with optimizer.sampled_params(train=True):
        weight.square().sum().backward()
    with pytest.raises(ValueError, match="a closure is needed"):
        optimizer.step()
    assert torch.equal(weight.data, torch.ones(3))


def classes(n=600, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=generator)
    return x, (x[:, 0] + torch.randn(n, generator=generator) > 0).long()


def network():
    torch.manual_seed(0)
    return perceptron(10, 30, 2)


def rows(n, batch, steps):
    return torch.randint(0, n, (steps, batch), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_summed_loss_is_told_from_a_mean_one(reduction):
    (x, y), model = classes(), network()
    optimizer = Variational(AdamW(model.parameters()), n=len(x), batch_size=50, total_steps=300)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for r in rows(len(x), 50, 300):
            train(optimizer, model, partial(F.cross_entropy, reduction=reduction), [(x[r], y[r])])
        optimizer.diagnostics()
    messages = [str(each.message) for each in said]
    wanted = ["Variational: expected the mean loss of a batch"] if reduction == "sum" else []
    assert [message[: len(wanted[0])] for message in messages] == wanted


@pytest.mark.parametrize(("ratio", "batch", "said"), [(0.1, 64, True), (0.24, 16, True), (0.9, 16, False)])
def test_summed_losses_of_networks_that_memorise_are_told_too(ratio, batch, said):
    """Theirs were up to four times 1/B, and those of mean losses at least 0.9."""
    meter = Variational(AdamW([one()]), n=10**6, batch_size=batch).meter
    meter.owed, meter.spent = 300.0, 300.0 * ratio
    assert (TOO_LARGE in meter.complaints(wait=True)) == said


@pytest.mark.parametrize(
    "given",
    [
        {"n": 10**6},  # with a batch of unknown size
        {"n": 10**6, "batch_size": 15},  # too small for sums and means to differ by much
        {"n": 100, "batch_size": 64},  # priced by Price's theorem, which needs no such ratio
    ],
)
def test_where_nothing_is_certain_nothing_is_said_of_summed_losses(given):
    meter = Variational(AdamW([one()]), **given).meter
    meter.owed, meter.spent = 1e6, 1e3
    assert TOO_LARGE not in meter.complaints(wait=True)


@pytest.mark.parametrize(
    "other",
    [
        lambda p: Adam([p]),
        lambda p: AdamW([p]),
        lambda p: IVON([p], lr=0.1, ess=10),
        lambda p: Variational([AdamW([p]), SGD([one()])], n=10),
    ],
)
def test_the_state_of_another_optimizer_is_refused_and_changes_nothing(other):
    weight, foreign = one(), one()
    optimizer, stranger = Variational(AdamW([weight]), n=10), other(foreign)
    batches = [(None, None)] * 3
    train(optimizer, lambda _: weight, lambda f, _: f.square().sum(), batches)
    foreign.grad = torch.ones(3)
    if isinstance(stranger, IVON | Variational):
        train(stranger, lambda _: foreign, lambda f, _: f.square().sum(), batches)
    else:
        stranger.step()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(InvalidInput, match=r"one of Variational, over AdamW, got '[^']+'"):
        optimizer.load_state_dict(stranger.state_dict())
    after = optimizer.state_dict()
    assert after["meter"] == before["meter"]
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["bases"][0]["state"][0]["exp_avg"], before["bases"][0]["state"][0]["exp_avg"])


def test_without_a_length_the_budget_follows_the_learning_rate():
    """Where λ > N, the price P̂ / 2λ is the share of the budget that is open."""
    x, y = classes(200)
    factors = {
        "constant": lambda t: 1.0,
        "warm-up": lambda t: (t + 1) / 100,
        "up and down": lambda t: min(1.0, t / 20, 2 - t / 50),
    }
    opened = {}
    for kind, factor in factors.items():
        model = network()
        base = AdamW(model.parameters(), lr=1e-3)
        optimizer = Variational(base, n=200, batch_size=20, budget=0.03)
        schedule = torch.optim.lr_scheduler.LambdaLR(base, factor)
        for r in rows(200, 20, 100):
            train(optimizer, model, F.cross_entropy, [(x[r], y[r])])
            rate = base.param_groups[0]["lr"]
            schedule.step()
        ess = float(optimizer.meter.following(rate, 1.0))  # of the next sample
        opened[kind] = optimizer.diagnostics().effective_parameters / (2 * ess * 0.03)
    # Ten epochs at a constant rate open (1 - 2/e)² = 0.07 of the budget, as a warm-up does; the end of a decay nearly
    # all: its last rate is a fiftieth of the peak.
    seen_again = 0.1 + 0.9 * (1 - math.exp(-4.5))
    assert opened["constant"] == pytest.approx((1 - 2 / math.e) ** 2 * seen_again)
    assert opened["warm-up"] == pytest.approx(opened["constant"])
    assert opened["up and down"] == pytest.approx((2 * 0.98 - 1) ** 2 * seen_again)


def test_behind_batch_normalisation_the_mean_predicts_with_and_without_new_statistics():
    x, y = classes()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    base = AdamW(model.parameters(), lr=3e-3)
    optimizer = Variational(base, n=len(x), batch_size=60, total_steps=150)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, 150)
    for r in rows(len(x), 60, 150):
        train(optimizer, model, F.cross_entropy, [(x[r], y[r])])
        schedule.step()
    posterior = optimizer.posterior(model, likelihood="categorical")
    anew = copy.deepcopy(model)
    torch.optim.swa_utils.update_bn(x.split(60), anew)
    with torch.no_grad():
        kept, recomputed = (F.cross_entropy(m.eval()(x), y).item() for m in (model, anew))
    drawn = F.nll_loss(po.predict(model, posterior, x, samples=16).probs.log(), y).item()
    # Running statistics average ten or so batches of 60, so that deviations are known to 1/√1200, about 3 %.
    assert recomputed == pytest.approx(kept, abs=0.03)
    assert drawn == pytest.approx(kept, abs=0.03)
    assert kept < 0.65


def test_a_run_resumed_before_its_noise_finds_the_same_normalisations():
    """What the first steps have seen is in the state: seven are behind each of the runs when they go on."""
    x, y = classes()
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        runs.append((model, Variational(AdamW(model.parameters(), lr=3e-3), n=len(x), batch_size=60)))
    (model, optimizer), (other, resumed) = runs
    for r in rows(len(x), 60, 7):
        train(optimizer, model, F.cross_entropy, [(x[r], y[r])])
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.normalised.state(other.parameters()) == optimizer.normalised.state(model.parameters())
    for r in rows(len(x), 60, 16):
        for net, each in ((model, optimizer), (other, resumed)):
            train(each, net, F.cross_entropy, [(x[r], y[r])])
    assert resumed.state_dict()["normalised"] == optimizer.state_dict()["normalised"]
    assert [found for found, *_ in optimizer.state_dict()["normalised"]] == [1, 1, 0, 0, 0, 0]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_accepts_a_base_that_already_has_a_scheduler():
    base = torch.optim.AdamW([one()])
    torch.optim.lr_scheduler.LambdaLR(base, lambda step: 0.5)
    assert Variational(base, n=10).param_groups[0]["lr"] == base.defaults["lr"] / 2


@pytest.mark.parametrize("base", [partial(SGD, lr=0.1, momentum=0.5), partial(AdamW, lr=0.1)])
def test_a_step_of_several_samples_takes_their_average_gradient(base):
    """Before there is noise, samples are the mean, and so the path is that of the base alone."""
    weight, other = (nn.Parameter(torch.linspace(-1, 1, 8)) for _ in range(2))
    optimizer, plain = Variational(base([weight]), n=100, mc_samples=3), base([other])

    def closure():
        optimizer.zero_grad()
        (weight**4).sum().backward()

    for _ in range(3):
        optimizer.step(closure)
        plain.zero_grad()
        (other**4).sum().backward()
        plain.step()
    torch.testing.assert_close(weight, other)


def test_a_group_that_is_added_goes_to_the_last_base():
    first, second, new = one(), one(), one()
    optimizer = Variational([SGD([first], lr=0.1), AdamW([second], lr=0.2)], n=10)
    optimizer.add_param_group({"params": [new]})
    assert [len(base.param_groups) for base in optimizer.bases] == [1, 2]
    assert optimizer.base_of(new)[0] is optimizer.bases[1]
    assert optimizer.param_groups[-1]["lr"] == 0.2


def test_a_group_that_is_added_late_is_part_of_the_posterior():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = Variational(AdamW(model[0].parameters()), n=50, total_steps=100)
    for step in range(30):
        if step == 25:  # between two looks at all widths
            optimizer.add_param_group({"params": model[1].parameters()})
        with optimizer.sampled_params(train=True):
            sum(layer(torch.ones(4, 2)).square().mean() for layer in model).backward()
        optimizer.step()
        optimizer.zero_grad()
    posterior = optimizer.posterior(model, likelihood="gaussian")
    assert all(torch.isfinite(v).all() and (v > 0).all() for v in posterior.variance.values())
    assert math.isfinite(optimizer.diagnostics().kl)
