"""What examples teach a network about themselves, and the budget that follows it."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, RAdam

from networks import perceptron
from posterity.optim import Variational, _meter, gap
from posterity.optim._looks import growing, looks, own_doing
from posterity.optim.price import Price


@pytest.mark.parametrize(
    "make",
    [
        lambda p: AdamW([p], lr=1e-2, betas=(0.0, 0.9), weight_decay=0.0),
        lambda p: SGD([p], lr=1e-2),
        lambda p: SGD([p], lr=1e-2, momentum=1e-12),
    ],
    ids=["AdamW", "SGD", "with a buffer"],
)
def test_own_doing_is_what_torchs_step_does_along_the_new_part_of_a_gradient(make):
    """Without momentum the average of earlier gradients is the last one, and steps are those of this gradient alone."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(50, dtype=torch.float64))
    base, last = make(p), torch.zeros(50, dtype=torch.float64)
    for _ in range(4):
        p.grad = torch.randn(50, dtype=torch.float64)
        found, before = own_doing(base, base.param_groups[0], p), p.detach().clone()
        remembered = last if base.state.get(p) else torch.zeros_like(last)
        if isinstance(base, SGD) and not base.param_groups[0]["momentum"]:
            remembered = torch.zeros_like(last)
        base.step()
        torch.testing.assert_close(found, (p.grad - remembered) @ (before - p.detach()), rtol=1e-9, atol=0)
        last = p.grad.clone()


def test_a_step_lowers_the_loss_of_its_examples_by_their_own_doing_more_than_that_of_others():
    """For a linear model the difference is exact: s = (η/N) E[gᵢᵀgᵢ] a step, of squared errors with small rates."""
    torch.manual_seed(0)
    n, size, lr = 400, 10, 1e-4
    x, y = torch.randn(n, 5, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    w = torch.randn(5, dtype=torch.float64)
    gradients = (x @ w - y)[:, None] * x
    mean, square = gradients.mean(0), gradients.square().sum(1).mean()
    differences = []
    for _ in range(4000):
        rows = torch.randperm(n)[:size]
        moved = w - lr * gradients[rows].mean(0)
        fall = 0.5 * ((x @ w - y).square() - (x @ moved - y).square())
        others = torch.ones(n, dtype=torch.bool)
        others[rows] = False
        differences.append((fall[rows].mean() - fall[others].mean()) * size / n)
    expected = lr / n * (square - mean @ mean)
    spread = torch.stack(differences).std() / len(differences) ** 0.5
    assert abs(torch.stack(differences).mean() - expected) < 4 * spread + 1e-2 * expected  # (N − 1)/N, curvature
    assert expected > 20 * spread


def trained(labels, x, steps=800, left=1.0):
    torch.manual_seed(0)
    model = perceptron(x.shape[1], 64, 2)
    optimizer = Variational(AdamW(model.parameters(), lr=3e-3, eps=1e-12), n=len(x), batch_size=20, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (20,))
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[rows]), labels[rows]).backward()
        for p in model.parameters():
            p.grad.mul_(left)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_memorised_labels_open_the_budget_and_easy_ones_do_not():
    torch.manual_seed(1)
    x = torch.randn(300, 20)
    easy, random = (trained(y, x, 2000) for y in ((x[:, 0] > 0).long(), torch.randint(0, 2, (300,))))
    assert not easy.meter.by_price
    taught = [float(o.meter.taught) for o in (easy, random)]
    assert taught[1] > 5 * taught[0] > 0
    prices = [o.diagnostics().price for o in (easy, random)]
    assert prices[1] > 4 * prices[0]
    assert prices[1] < 2 * gap.MOST


def test_clipping_does_not_look_like_memorising():
    """Adam's steps do not change with the size of gradients, so that these runs are one, but for rounding."""
    torch.manual_seed(1)
    x, labels = torch.randn(300, 20), torch.randint(0, 2, (300,))
    whole, clipped = (float(trained(labels, x, 200, left).meter.taught) for left in (1.0, 1 / 16))
    assert clipped == pytest.approx(whole, rel=0.01)


def test_a_given_budget_stays_and_other_bases_have_the_usual_one():
    weight = nn.Parameter(torch.ones(3))
    given = Variational(AdamW([weight]), n=10**6, budget=0.02).meter
    other = Variational(torch.optim.Adagrad([nn.Parameter(torch.ones(3))]), n=10**6).meter
    free = Variational(SGD([nn.Parameter(torch.ones(3))], lr=0.1), n=10**6).meter
    assert (given.follows, given.price.budget) == (False, 0.02)
    assert (other.follows, other.price.budget) == (False, gap.UNKNOWN)
    assert (free.follows, free.price.budget) == (True, gap.MOST)


def test_a_resumed_run_keeps_the_kind_of_its_budget():
    """Also that of an earlier version, whose state has no gap and whose budget was fixed."""
    runs = {}
    for kind, budget in (("fixed", 0.02), ("free", None)):
        weight = nn.Parameter(torch.ones(3))
        runs[kind] = Variational(AdamW([weight]), n=10**6, budget=budget)
        for _ in range(2):
            with runs[kind].sampled_params(train=True):
                weight.sum().backward()
            runs[kind].step()
    for kind, other in (("fixed", "free"), ("free", "fixed")):
        saved = runs[kind].state_dict()
        resumed = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=10**6, budget=None if other == "free" else 0.02)
        resumed.load_state_dict(saved)
        assert (resumed.meter.follows, resumed.meter.price.budget) == (kind == "free", runs[kind].meter.price.budget)
    old = runs["fixed"].state_dict()
    old["meter"] = {name: x for name, x in old["meter"].items() if name not in ("follows", "taught", "moved")}
    resumed = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=10**6)
    resumed.load_state_dict(old)
    assert (resumed.meter.follows, resumed.meter.price.budget) == (False, 0.02)
    once, own = runs["free"].state_dict(), runs["free"].meter.state()
    once["meter"] = {**{name: x for name, x in own.items() if name != "settled"}, "total": 3.0, "allowed": 0.05}
    resumed.load_state_dict(once)
    assert resumed.meter.state() == own | {"total": 3.0, "settled": 3.0}


def test_a_network_that_learns_late_gets_less_noise():
    """From twice the effective parameters on, that there were when the gap was learnt."""
    meter = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=1000, total_steps=100).meter
    meter.taught.fill_(0.4)
    meter.settled.fill_(200.0)
    opened = []
    for parameters in (100.0, 200.0, 400.0, 500.0, 4000.0):
        meter.total.fill_(parameters)
        opened.append(float(meter._open(1.0, 1.0, 100.0)) * gap.MOST)
    usual = gap.SHARE * 0.4
    assert opened == pytest.approx([usual, usual, usual, usual * 0.8**4, gap.LEAST])


def test_a_network_far_from_fitted_gets_less_noise():
    meter = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=1000, total_steps=100).meter
    meter.taught.fill_(0.4)
    for number in (meter.settled, meter.total):
        number.fill_(200.0)
    opened = []
    for gain in (-1.0, 0.0, gap.GROWING, 1.25 * gap.GROWING, 2 * gap.GROWING):
        meter.growing.fill_(gain)
        opened.append(float(meter._open(1.0, 1.0, 100.0)) * gap.MOST)
    usual = gap.SHARE * 0.4
    assert opened == pytest.approx([usual, usual, usual, usual * 0.8**8, gap.LEAST])


@pytest.mark.parametrize(
    ("make", "kept"),
    [(lambda p: SGD([p], lr=0.1), 0.0), (lambda p: SGD([p], lr=0.1, momentum=0.9), 0.9), (lambda p: AdamW([p]), 0.9)],
    ids=["SGD", "momentum", "AdamW"],
)
def test_larger_weights_gain_minus_the_derivative_of_the_loss_in_the_logarithm_of_their_scale(make, kept):
    """With a momentum, of the average of earlier gradients, which here are all the same."""
    torch.manual_seed(0)
    p, x = nn.Parameter(torch.randn(5, dtype=torch.float64)), torch.randn(20, 5, dtype=torch.float64)
    base, scale = make(p), torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(300 if kept else 1):
        p.grad = None
        F.softplus(x @ p).mean().backward()
        with torch.no_grad():
            before = p.clone()
        base.step()
        with torch.no_grad():
            p.copy_(before)
    slope = torch.autograd.grad(F.softplus(x @ (p.detach() * scale.exp())).mean(), scale)[0]
    torch.testing.assert_close(growing(base, base.param_groups[0], p), -slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("look", [own_doing, growing])
@pytest.mark.parametrize("make", [AdamW, lambda p, **o: SGD(p, lr=0.1, momentum=0.9, **o)], ids=["AdamW", "SGD"])
def test_a_base_that_maximises_tells_what_one_that_minimises_the_negative_tells(make, look):
    found = []
    for sign, maximize in ((1.0, False), (-1.0, True)):
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(7, dtype=torch.float64))
        base = make([p], maximize=maximize)
        for _ in range(3):
            p.grad = sign * torch.randn(7, dtype=torch.float64)
            found.append(look(base, base.param_groups[0], p))
            base.step()
    torch.testing.assert_close(found[:3], found[3:], rtol=1e-12, atol=0)


def test_what_larger_weights_gain_is_averaged_over_the_third_quarter_without_clipping():
    """Before, the last few looks count; later, looks change it no more."""
    meter = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=1000, total_steps=400).meter
    found = [1.0, 3.0, 2.0, 4.0, 0.0, 7.0, 7.0, 7.0, 7.0, 7.0, 4.0, 5.0, 6.0, 1.0, 9.0, 9.5, 9.5]
    expected, mean = [], 0.0  # at 20, 40 … 200 of 400 steps, and from 220 to 300, where a quarter is left; then at 301
    for look, value in enumerate(found[:10], 1):
        mean += (value - mean) / min(look, 5)
        expected.append(mean)
    expected += [4.0, 4.5, 5.0, 4.0, 5.0, 5.0, 5.0]
    for look, (value, mean) in enumerate(zip(found, expected, strict=True), 1):
        meter.steps = look * _meter.REFRESH if look < 16 else 285 + look
        meter.clip(torch.tensor(0.5))  # half of each gradient is left
        meter.learn_gap(torch.zeros(()), torch.tensor(value) / 2, 0.1)
        assert float(meter.growing) == pytest.approx(mean)


@pytest.mark.parametrize("dampening", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_own_doing_of_sgd_is_what_a_gradient_does_in_all_steps_together(momentum, dampening):
    """A gradient that is followed by zeros; where the buffer never forgets, in the first step alone."""
    p, g = nn.Parameter(torch.ones(3, dtype=torch.float64)), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    base = SGD([p], lr=0.1, momentum=momentum, dampening=dampening)
    p.grad = torch.zeros_like(p)
    base.step()  # torch's first step has no dampening
    p.grad, before = g.clone(), p.detach().clone()
    found = float(own_doing(base, base.param_groups[0], p))
    for _ in range(1 if momentum == 1 else 300):
        base.step()
        p.grad.zero_()
    assert found == pytest.approx(float(g @ (before - p.detach())), abs=1e-12)
    assert math.isfinite(growing(base, base.param_groups[0], p))


@pytest.mark.parametrize("maximize", [False, True])
def test_a_prior_pulls_whatever_the_base_maximises(maximize):
    torch.manual_seed(0)
    model, sign = nn.Linear(5, 2), -1 if maximize else 1
    base = SGD(model.parameters(), lr=0.5, maximize=maximize)
    optimizer = Variational(base, n=100, batch_size=10, total_steps=100, prior=100.0)
    x, y = torch.randn(100, 5), torch.randint(0, 2, (100,))
    for _ in range(60):
        rows = torch.randperm(100)[:10]
        with optimizer.sampled_params(train=True):
            (sign * F.cross_entropy(model(x[rows]), y[rows])).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.weight.detach().abs().max() < 0.5
    assert abs(float(optimizer.meter.growing)) < 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=1e-6, momentum=0.9, weight_decay=0.3),
        lambda p: SGD(p, lr=1e-6, momentum=0.9, dampening=0.9),
        lambda p: Adam(p, lr=1e-6, weight_decay=0.3),
        lambda p: AdamW(p, lr=1e-6, weight_decay=0.3),
        lambda p: RAdam(p, lr=1e-6, weight_decay=0.3),
    ],
    ids=["SGD", "dampening", "Adam", "AdamW", "RAdam"],
)
@pytest.mark.parametrize("prior", [0.0, 0.2])
def test_neither_weight_decay_nor_a_prior_counts_as_a_gradient_of_the_loss(make, prior):
    """Weights hardly move here, so that the average of gradients is the gradient, but for what the base has added."""
    torch.manual_seed(0)
    p, g = nn.Parameter(torch.randn(5, 2, dtype=torch.float64)), torch.randn(5, 2, dtype=torch.float64)
    base = make([p])
    for _ in range(300):  # until a momentum has forgotten its first gradient
        p.grad = g + prior * p.detach()
        base.step()
    p.grad, group, pull = g.clone(), base.param_groups[0], prior * p.detach()
    assert float(growing(base, group, p, pull)) == pytest.approx(-float((p.detach() * g).sum()), rel=1e-3)
    assert abs(float(own_doing(base, group, p, pull))) < 1e-3 * group["lr"] * float(g.square().sum())  # ĝ = ḡ


def test_what_tells_among_gains_waits_for_no_device():
    assert gap.largest(torch.zeros(3, device="meta")).shape == ()


def test_depth_does_not_count_in_what_larger_weights_gain():
    """Of a network of rectifiers without biases every layer would gain the same."""
    torch.manual_seed(0)
    sizes, x, y = (6, 20, 20, 20, 3), torch.randn(40, 6, dtype=torch.float64), torch.randint(0, 3, (40,))
    layers = [nn.Linear(a, b, bias=False, dtype=torch.float64) for a, b in itertools.pairwise(sizes)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
    base = SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(x), y).backward()
    gains = [growing(base, base.param_groups[0], p) for p in model.parameters()]
    torch.testing.assert_close(gains, gains[:1] * 4, rtol=1e-9, atol=0)


def test_the_matrix_tells_that_gains_or_loses_most():
    """Vectors, such as biases, tell nothing. Weights of one have a gain of minus their gradient."""
    small, large, vector = (nn.Parameter(torch.ones(shape)) for shape in ((2, 1), (1, 3), (3,)))
    base = SGD([small, large, vector], lr=0.1)
    for gradient, told in ((1.0, -3.0), (-1.0, 3.0)):
        for p, factor in ((small, -1.0), (large, 1.0), (vector, 9.0)):
            p.grad = torch.full_like(p, factor * gradient)
        _, gains = looks(
            lambda _: (base, base.param_groups[0]), [small, large, vector], lambda _: None, torch.zeros(())
        )
        assert float(gap.largest(gains)) == told
    assert float(gap.largest(gains[2:])) == 0


@pytest.mark.parametrize(
    ("met", "told", "wanted"), [(0.4, 1.0, 0.4), (0.4, 1e-6, 1.0), (3.0, 1.0, 1.0), (-0.5, 1.0, 0.0)]
)
def test_squares_and_the_price_agree_unless_the_price_is_surely_less(met, told, wanted):
    """P̂ is a multiple of P here, from noise whose Σ 1/λ is given."""
    price, squares = Price.of(1000, 0.1, torch.device("cpu")), torch.tensor(500.0, dtype=torch.float64)
    price.ess.fill_(1e12)  # of the next step, which tells nothing
    price.per_ess.fill_(told)
    price.paid.fill_(met * told * 500)
    # Chance is two deviations of √(P/(B Σ 1/λ)): 0.02 of P where much was told.
    assert float(price.agreement(squares, 32)) == pytest.approx(wanted, abs=0.02)


def test_a_budget_falls_with_the_fourth_power_of_what_the_noise_met_and_a_given_one_stays():
    allowed = torch.tensor(0.08)
    for agreement, left in ((1.0, 0.08), (0.5, 0.08 / 16), (0.0, gap.LEAST)):
        found = gap.believed(allowed, torch.tensor(agreement), torch.tensor(1.0), torch.tensor(0.0))
        assert float(found) == pytest.approx(left)
    found = {}
    for budget in (None, gap.MOST):
        meter = Variational(AdamW([nn.Parameter(torch.ones(3))]), n=10**6, total_steps=100, budget=budget).meter
        meter.total.fill_(500.0)
        meter.taught.fill_(100.0)
        meter.settled.fill_(500.0)
        meter.price.per_ess.fill_(1.0)
        meter.price.paid.fill_(250.0)  # half of P
        meter.done = 1.0
        found[budget] = float(meter._open(1.0, 1.0, 100.0))
    assert found[gap.MOST] == pytest.approx(1.0)
    assert found[None] == pytest.approx(0.5**4, rel=0.1)
