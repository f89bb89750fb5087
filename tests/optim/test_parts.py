"""Parts of the optimizers, each held to what it says: growth, limits, shares of shards, sweeps, temperatures."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from networks import perceptron
from optim.conformance import CASES
from posterity.batches import Batch
from posterity.errors import InvalidInput
from posterity.likelihoods import CategoricalLikelihood, GaussianLikelihood
from posterity.optim import IVON, VOGN, Variational, VariationalNewton, _distributed, _suggest
from posterity.optim._growth import Growth
from posterity.optim._meter import Meter
from posterity.optim._normalised import SHARE, Normalised
from posterity.optim._two_pass import joint_norm, scaled
from posterity.optim.engine._statistics import Statistics
from posterity.optim.watch import LOOKS, Watch


def test_looks_at_rows_that_are_set_aside_are_few_and_evenly_spaced():
    meter = Meter.of(1000, 10, 2000, None, [torch.zeros(5)])
    meter.watched, due = True, []
    for steps in range(2001):
        meter.steps, meter.done = steps, steps / 2000
        due += [steps] if meter.look_due() else []
    gaps = {b - a for a, b in pairwise(due)}
    assert 3 < len(due) <= LOOKS
    assert len(gaps) == 1


@pytest.mark.parametrize(("share", "flat"), [(0.5, True), (2.0, False)])
def test_what_is_normalised_is_decided_by_the_mean_over_looks(share, flat):
    weight, (looks, known) = nn.Parameter(torch.ones(2, 2)), (10, Normalised())
    known._order, known._steps = [weight], {weight: looks}
    known._cosines = {weight: torch.tensor(share * SHARE * looks)}
    assert (weight in known) == flat


@pytest.mark.parametrize("first", [0, 3, 5])
def test_entries_of_a_shard_are_those_of_the_whole(first, monkeypatch):
    monkeypatch.setattr(_distributed, "first_index", lambda p: first)
    whole = torch.arange(20)
    mine = whole[first : first + 9]
    found = _distributed.every(mine, nn.Parameter(torch.zeros(9)), 4)
    assert found.tolist() == [i for i in range(first, first + 9) if i % 4 == 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("times", "fine"), [(0.9, True), (1.5, False), (math.inf, False), (math.nan, False)])
def test_gradients_are_finite_where_their_squares_times_ess_and_noise_are(dtype, times, fine):
    ess = 400.0
    size = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max ** 0.5 / 8 / ess**0.5
    p = nn.Parameter(torch.zeros(3, dtype=dtype))
    p.grad = torch.tensor([0.0, times * size, 0.0], dtype=dtype)
    assert Statistics(False).finite({p: ess}) == fine
    p.grad = None
    assert Statistics(False).finite({p: ess})


def diverging(steps, gradient, weight):
    """When training counts as diverging, if gradients and weights grow by these factors a step."""
    p, growth, found = nn.Parameter(torch.ones(2)), Growth(), []
    for step in range(steps):
        with torch.no_grad():
            p.fill_(weight**step)
        p.grad = torch.full((2,), float(gradient**step))
        if growth.diverges([p]):
            found.append(step)
    return found


def test_training_diverges_where_gradients_and_weights_have_grown_at_two_looks():
    """Looks come at the steps 0, 20, 40 ...: gradients grow a thousandfold and weights tenfold before the second."""
    assert diverging(100, 1.5, 1.2) == [40]
    assert diverging(100, 1.5, 1.0) == []
    assert diverging(100, 1.0, 1.2) == []
    assert diverging(450, 1.5 ** (1 / 12), 1.2 ** (1 / 12)) == [400]  # past the first 200 steps, a look in a hundred


def test_looks_that_do_not_follow_each_other_are_none():
    p, growth = nn.Parameter(torch.ones(2)), Growth()
    for step in range(81):
        large = step in (20, 60, 80)
        with torch.no_grad():
            p.fill_(100.0 if large else 1.0)
        p.grad = torch.full((2,), 1e6 if large else 1.0)
        assert growth.diverges([p]) == (step == 80)


def test_tensors_times_one_number_on_one_device_or_several():
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    assert [t.tolist() for t in scaled(tensors, torch.tensor(3.0))] == [[3.0] * 2, [6.0] * 3]
    assert joint_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item() == pytest.approx(5)


def test_a_parameter_that_a_base_has_already_is_not_added():
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Variational([torch.optim.SGD([one], lr=0.1), torch.optim.SGD([two], lr=0.1)], n=10)
    with pytest.raises(InvalidInput, match="each parameter in one optimizer"):
        optimizer.add_param_group({"params": [one]})
    with pytest.raises(InvalidInput, match="real floating-point"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]})


@pytest.mark.parametrize("make", [lambda p: VOGN(p, lr=0.1, ess=10), lambda p: VariationalNewton(p, lr=0.1, ess=10)])
def test_gradients_of_single_examples_are_cleared_with_the_others(make):
    p = nn.Parameter(torch.ones(2))
    optimizer = make([p])
    with optimizer.sampled_params(train=True):
        p.square().sum().backward()
    optimizer.zero_grad()
    assert p.grad is None
    assert not getattr(optimizer, "_pairs", [])


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("until_step", [False, True])
def test_a_graph_of_a_sample_is_not_differentiated_at_the_mean(fused, until_step):
    """Kernels write behind torch's back: they have to count their writes as torch does."""
    p = nn.Parameter(torch.ones(5000))
    optimizer = IVON([p], lr=0.1, ess=10, fused=fused)
    for _ in range(2):
        with optimizer.sampled_params(train=True, until_step=until_step):
            loss = p.square().sum()
            loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()


@pytest.mark.parametrize("how", ["context", "until_step", "ahead"])
def test_gradients_that_were_there_before_a_sample_count_as_gradients_alone(how):
    """Those of a penalty, say: added to p.grad, they have nothing to do with the noise."""
    found = []
    for fused in (None, False):
        torch.manual_seed(0)
        model = nn.Linear(40, 30)
        x = torch.randn(16, 40)
        optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=fused)
        attachment = optimizer.attach(model, ahead=True) if how == "ahead" else None
        for _ in range(4):
            for p in model.parameters():
                p.grad = 0.2 * p.detach()
            if attachment is not None:
                model(x).square().mean().backward()
            else:
                with optimizer.sampled_params(train=True, until_step=how == "until_step"):
                    model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if attachment is not None:
            attachment.remove()
        found.append(model.state_dict() | {"h": optimizer.state[model.weight]["hessian"]})
    for name, t in found[0].items():
        torch.testing.assert_close(t, found[1][name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("high", "steps"), [(1.0, 40), (5.0, 28)])
def test_a_sweep_of_learning_rates_covers_four_decades_or_ends_at_twice_the_lowest_loss(high, steps, monkeypatch):
    rates = []

    def step(model, loss, optimizer, batch):
        rates.append(optimizer.param_groups[0]["lr"])
        return 1.0 if rates[-1] < 0.5 else high

    monkeypatch.setattr(_suggest, "_step", step)
    rows = Batch(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1))
    monkeypatch.setattr(_suggest, "_forever", lambda source: iter([rows] * 100))
    found = _suggest._learning_rate(nn.Linear(1, 1), None, None, 40)
    assert rates == pytest.approx([1e-3 * 10 ** (k / 10) for k in range(steps)])
    assert found == pytest.approx(1e-3 / 3)  # the first of equals
    monkeypatch.setattr(_suggest, "_step", lambda *_: math.nan)
    with pytest.raises(InvalidInput, match="finite loss at the start"):
        _suggest._learning_rate(nn.Linear(1, 1), None, None, 40)


@pytest.mark.parametrize(("n", "h"), [(1000, 10**-1.5), (100_000, 10**-3.5)])
def test_the_widest_posterior_within_the_tolerance_is_proposed(n, h):
    """Samples add ½/(n h) to a loss of ½ mean w² = ½: no more than a twentieth for n h ≥ 20, in powers of √10."""
    model = nn.Linear(5000, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    held = [Batch(torch.ones(1, 1), torch.zeros(1, 1), torch.arange(1))] * 4
    found = _suggest._hess_init(model, lambda net, _: 0.5 * net.weight.square().mean(), held, n=n, tolerance=0.05)
    assert found == pytest.approx(h)


def watched(logits, labels):
    model = nn.Linear(1, 1)
    rows = Batch(torch.zeros(len(labels), 1), labels, torch.arange(len(labels)))
    return Watch(model, rows, lambda: CategoricalLikelihood())


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0, 28.0])
def test_the_temperature_of_watched_rows_is_the_one_that_fits(true):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    watch = watched(logits, labels)
    found, gain = watch.temperature([true * logits])

    def loss(t):
        return nn.functional.cross_entropy(true * logits / t, labels).item()

    best = minimize_scalar(lambda t: loss(math.exp(t)), bounds=(-3, 5), method="bounded").x
    assert found == pytest.approx(math.exp(best), rel=0.1)  # eight steps an octave
    assert gain == pytest.approx(loss(1.0) - loss(found))
    assert watch.output_temperature([true * logits]) == pytest.approx(math.exp(best), rel=0.1)


def test_the_temperature_of_watched_amounts_is_a_ratio_of_variances():
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(3, 500, 1, generator=generator, dtype=torch.float64)
    y = 2 * torch.randn(500, 1, generator=generator, dtype=torch.float64)
    rows = Batch(torch.zeros(500, 1), y, torch.arange(500))
    found, gain = Watch(nn.Linear(1, 1), rows, lambda: GaussianLikelihood(4.0)).temperature(list(f))
    t = ((y - f.mean(0)).square() / (0.25 + f.var(0))).mean().item()
    assert (found, gain) == pytest.approx((t, 0.5 * (t - 1 - math.log(t))))


def test_few_watched_rows_hardly_move_the_temperature_of_outputs():
    """A penalty of two rows on (log T)²: one sure row that is wrong would have all of it otherwise."""
    logits, labels = torch.tensor([[8.0, 0.0]], dtype=torch.float64), torch.tensor([1])
    assert watched(logits, labels).temperature([logits])[0] == 32.0
    found = watched(logits, labels).output_temperature([logits])
    assert 1 < found < 16


@pytest.mark.parametrize("name", CASES)
def test_the_seed_is_zero_unless_given(name):
    optimizer = CASES[name]([nn.Parameter(torch.ones(2))])
    assert {group.get("seed", 0) for group in optimizer.param_groups} == {0}


def test_a_copy_of_a_trained_optimizer_takes_the_same_steps():
    torch.manual_seed(0)
    model, x = perceptron(3, 4, 1), torch.randn(8, 3)
    optimizer = IVON(model.parameters(), lr=0.1, ess=50)

    def step(model, optimizer):
        with optimizer.sampled_params(train=True):
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(model, optimizer)
    twin, other = copy.deepcopy((model, optimizer))
    for pair in ((model, optimizer), (twin, other)):
        step(*pair)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
