"""`Variational` against exact posteriors, exact prices and plain bases."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW

import posterity as po
from networks import perceptron
from posterity.errors import InvalidInput
from posterity.optim import Variational
from posterity.optim._meter import COLD
from posterity.posterior import Diagonal, Posterior


def logistic(n, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    truth = torch.linspace(-1, 1, d, dtype=torch.float64)
    y = torch.bernoulli(torch.sigmoid(x @ truth), generator=generator)
    return x, y


def train(model, optimizer, loss, x, y, batch, steps, seed=0, scheduler=None):
    generator = torch.Generator().manual_seed(seed)
    while steps:
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(batch)[: len(x) // batch]:
            with optimizer.sampled_params(train=True):
                loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            steps -= 1
            if not steps:
                return


def fitted(batch, by_price, steps, n=200):
    """A linear and a logistic regression, the rows of one weight, trained to the end under N(0, 1) with λ = N.

    The learning rate decays; all is in double precision. With λ = N the rows have nothing to do with each other.
    """
    torch.manual_seed(0)
    x, labels = logistic(n)
    numbers = x @ torch.linspace(-1, 1, 3, dtype=x.dtype) + torch.randn(n, dtype=x.dtype)
    model = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    base = Adam(model.parameters(), lr=0.03)
    length = steps if by_price else None
    optimizer = Variational(base, n=n, batch_size=batch, total_steps=length, budget=100.0, prior=1.0)
    assert optimizer.meter.by_price == by_price

    def loss(f, t):
        return 0.5 * (f[:, 0] - t[:, 0]).square().mean() + F.binary_cross_entropy_with_logits(f[:, 1], t[:, 1])

    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(base, steps)
    train(model, optimizer, loss, x, torch.stack([numbers, labels], 1), batch, steps, scheduler=cosine)
    return x, {"linear": numbers, "logistic": labels}, model, optimizer


def expectations(kind, x, y, mean, sigma):
    """E_q of the mean gradient, of squared gradients of examples, and of the curvature, by many exact draws."""
    noise = torch.randn(20_000, len(mean), generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    f = x @ (mean + sigma * noise).T
    residual = (f if kind == "linear" else torch.sigmoid(f)) - y[:, None]
    curvature = torch.ones_like(f) if kind == "linear" else torch.sigmoid(f) * torch.sigmoid(-f)
    means = residual.mean(1), residual.square().mean(1), curvature.mean(1)  # over draws
    return tuple((power * m[:, None]).mean(0) for power, m in zip((x, x.square(), x.square()), means, strict=True))


@pytest.mark.parametrize(
    ("batch", "by_price", "steps"), [(8, False, 2500), (40, False, 2500), (40, True, 4000), (200, True, 2500)]
)
def test_mean_and_precision_solve_the_equations_of_the_posterior(batch, by_price, steps):
    """By Price's theorem the precision is the mean-field optimum's, by squares N E[g²] + P₀."""
    x, targets, model, optimizer = fitted(batch, by_price, steps)
    posterior = optimizer.posterior(model, likelihood="gaussian")
    assert posterior.temperature == pytest.approx(1.0)
    for row, (kind, y) in enumerate(targets.items()):
        mean, precision = posterior.mean["weight"][row], posterior.structure.precision["weight"][row]
        gradient, squares, curvature = expectations(kind, x, y, mean, precision.rsqrt())
        n = len(x)
        spread = squares.sqrt() / math.sqrt(n)  # of the gradient over sets of examples: the scale of what cancels
        assert ((gradient + mean / n).abs() < 0.15 * spread).all(), kind
        wanted = n * (curvature if by_price else squares) + 1
        # Squares over the last thousand steps, of batches of 8, have a relative spread of √(2 / (1000 · 8)) · 2 or so;
        # Price's products over all steps, of batches of B, one of √(N / (B · steps)): 0.035 and 0.02.
        torch.testing.assert_close(precision, wanted, rtol=0.15, atol=0)


def test_the_price_is_half_the_trace_of_covariance_times_hessian():
    torch.manual_seed(0)
    hessian = torch.rand(2000, dtype=torch.float64) + 0.5
    weight = nn.Parameter(torch.randn(2000, dtype=torch.float64))
    optimizer = Variational(SGD([weight], lr=0.0), n=100, batch_size=10, total_steps=500, budget=0.03)
    prices, wanted = [], []
    for _ in range(COLD + 480):
        with optimizer.sampled_params(train=True):
            (0.5 * hessian * weight.square()).sum().backward()
        variance = 1 / optimizer.precision_of(weight, optimizer.param_groups[0])
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.meter.steps > COLD:
            prices.append(optimizer.meter.price.last)
            wanted.append(0.5 * (variance * hessian).sum())
    # One price has the spread ½ √Σ σ²g², and a hundred of them a tenth of it.
    spread = 0.05 * (variance * (hessian * weight).square()).sum().sqrt()
    assert (torch.stack(prices[-100:]) - torch.stack(wanted[-100:])).mean().abs() < 4 * spread
    assert torch.stack(wanted[-100:]).mean() > 4 * spread


def noisy_network(base=AdamW, scale=1.0, clip=None, accumulate=1, mc_samples=1, steps=COLD + 60, **options):
    torch.manual_seed(0)
    x, y = logistic(400, 5)
    x, y = x.float(), y.long()
    model = perceptron(5, 20, 2)
    optimizer = Variational(
        base(model.parameters(), lr=1e-3), n=400, batch_size=40, total_steps=steps, mc_samples=mc_samples, **options
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(0, 400, (40,), generator=generator)
        for part in rows.chunk(accumulate):
            with optimizer.sampled_params(train=True):
                (scale * F.cross_entropy(model(x[part]), y[part]) / accumulate).backward()
        for p in model.parameters():
            p.grad.div_(scale)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, x, y


def test_a_gradient_scaler_changes_nothing():
    plain, scaled = noisy_network(), noisy_network(scale=2.0**16)
    assert all(torch.equal(p, q) for p, q in zip(plain[0].parameters(), scaled[0].parameters(), strict=True))
    assert float(scaled[1].meter.price.ess) == pytest.approx(float(plain[1].meter.price.ess), rel=1e-4)


def test_clipping_leaves_price_and_curvature_alone():
    plain, clipped = noisy_network(SGD), noisy_network(SGD, clip=0.01)
    p, q = plain[1], clipped[1]
    total = [float(o.meter.total) for o in (p, q)]
    assert total[1] == pytest.approx(total[0], rel=0.5)  # 0.01 would have made it ten thousand times smaller
    assert float(q.meter.price.ess) == pytest.approx(float(p.meter.price.ess), rel=1.0)


def test_accumulated_batches_have_their_own_products():
    whole, parts = noisy_network(budget=0.03)[1], noisy_network(budget=0.03, accumulate=4)[1]
    assert parts.meter.price.parameters(parts.meter.total) == pytest.approx(
        float(whole.meter.price.parameters(whole.meter.total)), rel=0.5
    )


def test_no_state_is_kept_beside_adam_and_squares_beside_others():
    adam, sgd = noisy_network(AdamW)[1], noisy_network(SGD)[1]
    assert all(set(state) == {"step"} for state in adam.state.values())
    assert all(set(state) == {"step", "squares"} for state in sgd.state.values())


def test_without_noise_the_steps_are_those_of_the_base():
    model, _, x, y = noisy_network(steps=COLD)
    torch.manual_seed(0)
    plain = perceptron(5, 20, 2)
    base, generator = AdamW(plain.parameters(), lr=1e-3), torch.Generator().manual_seed(0)
    for _ in range(COLD):
        rows = torch.randint(0, 400, (40,), generator=generator)
        F.cross_entropy(plain(x[rows]), y[rows]).backward()
        base.step()
        base.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("base", [AdamW, SGD])
def test_a_resumed_run_goes_on_to_the_bit(base):
    long = noisy_network(base, steps=2 * COLD + 7)
    torch.manual_seed(0)
    x, y = long[2:]
    models = [perceptron(5, 20, 2) for _ in range(2)]
    make = lambda m: Variational(base(m.parameters(), lr=1e-3), n=400, batch_size=40, total_steps=2 * COLD + 7)  # noqa: E731
    torch.manual_seed(0)
    models[0] = perceptron(5, 20, 2)
    first, second = (make(m) for m in models)
    generator = torch.Generator().manual_seed(0)
    for step in range(2 * COLD + 7):
        if step == COLD + 5:
            models[1].load_state_dict(models[0].state_dict())
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        model, optimizer = (models[0], first) if step < COLD + 5 else (models[1], second)
        rows = torch.randint(0, 400, (40,), generator=generator)
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(long[0].parameters(), models[1].parameters(), strict=True))
    assert torch.equal(long[1].meter.price.ess, second.meter.price.ess)


def test_several_bases_share_a_network():
    torch.manual_seed(0)
    model = perceptron(5, 20, 2)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim == 1]
    bases = [torch.optim.Muon(matrices, lr=0.02), AdamW(rest, lr=1e-3)]
    optimizer = Variational(bases, n=400, batch_size=40, total_steps=80)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, 80)
    x, y = logistic(400, 5)
    train(model, optimizer, F.cross_entropy, x.float(), y.long(), 40, 80, scheduler=scheduler)
    assert bases[0].param_groups[0]["lr"] == pytest.approx(0.01)
    posterior = optimizer.posterior(model, likelihood="categorical")
    assert posterior.names == tuple(name for name, _ in model.named_parameters())
    again = Variational([torch.optim.Muon(matrices, lr=0.1), AdamW(rest)], n=400, batch_size=40, total_steps=80)
    again.load_state_dict(optimizer.state_dict())
    assert again.bases[0].param_groups[0]["lr"] == pytest.approx(0.01)
    assert again.meter.price.ess == optimizer.meter.price.ess


def test_the_posterior_says_what_it_is():
    model, optimizer, x, _ = noisy_network()
    posterior = optimizer.posterior(model, likelihood="categorical")
    found = optimizer.diagnostics()
    assert posterior.temperature == pytest.approx(found.temperature) == pytest.approx(400 / posterior.ess)
    assert 0 < found.temperature <= 1
    assert found.effective_parameters > 0
    assert optimizer.diagnostics(loss=0.5).elbo is None  # colder than N: no evidence at temperature 1
    data = (posterior - posterior.prior).precision["0.weight"]
    p = model[0].weight
    squares, factor = optimizer._curvature(p)
    torch.testing.assert_close(data, posterior.ess * squares * factor, rtol=1e-4, atol=1e-4 * data.max().item())
    assert po.predict(model, posterior, x[:3], samples=4).probs.shape == (3, 2)


def test_a_posterior_given_as_prior_is_taken_at_temperature_one():
    model, optimizer, *_ = noisy_network()
    posterior = optimizer.posterior(model, likelihood="categorical")
    named = list(model.named_parameters())
    second = Variational(AdamW(named, lr=1e-3, weight_decay=0.0), n=100, prior=posterior)
    p = model[0].weight
    wanted = posterior.structure.precision["0.weight"] * posterior.temperature
    torch.testing.assert_close(second.state[p]["prior_precision"], wanted)


@pytest.mark.parametrize("batch", [45, 89])
def test_batches_of_most_of_few_examples_do_not_diverge(batch):
    torch.manual_seed(0)
    x, y = torch.randn(89, 5), torch.arange(89) % 3
    model = perceptron(5, 32, 3, hidden=nn.ReLU)
    optimizer = Variational(AdamW(model.parameters(), lr=1e-2), n=89, batch_size=batch, total_steps=300)
    train(model, optimizer, F.cross_entropy, x, y, batch, 300)
    found = optimizer.diagnostics()
    assert found.skipped == 0
    assert found.sigma[0] > 0
    assert found.price < 10 * 0.03


def test_training_that_ends_early_opens_the_budget():
    torch.manual_seed(0)
    x, y = torch.randn(400, 5), torch.arange(400) % 3
    model = perceptron(5, 32, 3, hidden=nn.ReLU)
    optimizer = Variational(AdamW(model.parameters(), lr=1e-2), n=400, batch_size=40, total_steps=10_000)
    train(model, optimizer, F.cross_entropy, x, y, 40, 300)
    cold = optimizer.temperature
    optimizer.finish()
    price = optimizer.meter.price
    assert optimizer.temperature > 1e3 * cold
    assert float(price.parameters(optimizer.meter.total) / (2 * price.ess)) == pytest.approx(0.03, rel=0.01)


def test_a_prior_moves_the_mean_and_not_the_price():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(50))
    prior = Diagonal({"weight": torch.ones(50)}, {"weight": torch.full((50,), 100.0)})
    optimizer = Variational(SGD([("weight", weight)], lr=0.5), n=100, prior=prior, total_steps=400, batch_size=10)
    for _ in range(100):
        with optimizer.sampled_params(train=True):
            (0 * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(weight.data, torch.ones(50), rtol=0, atol=1e-4)
    assert float(optimizer.meter.price.last) == 0


def one():
    return nn.Parameter(torch.ones(3))


def test_the_state_of_another_base_is_refused_and_changes_nothing():
    first, second = noisy_network(AdamW)[1], noisy_network(SGD)[1]
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(InvalidInput, match="over SGD, got 'AdamW'"):
        second.load_state_dict(first.state_dict())
    broken = copy.deepcopy(before)
    broken["meter"]["ess"] = math.nan
    with pytest.raises(InvalidInput, match="ess"):
        second.load_state_dict(broken)
    assert second.state_dict()["meter"] == before["meter"]


def test_more_steps_than_announced_warn_once():
    weight = one()
    optimizer = Variational(AdamW([weight]), n=10, total_steps=25)

    def more(steps):
        for _ in range(steps):
            with optimizer.sampled_params(train=True):
                weight.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    more(25)
    with pytest.warns(UserWarning, match="at most total_steps=25") as said:
        more(5)
    assert len(said) == 1


def test_the_posterior_of_no_training_is_refused():
    model = nn.Linear(2, 1)
    optimizer = Variational(AdamW(model.parameters()), n=10)
    with pytest.raises(InvalidInput, match="at least one step"):
        optimizer.posterior(model, likelihood="gaussian")


def test_posteriors_travel(tmp_path):
    model, optimizer, *_ = noisy_network()
    posterior = optimizer.posterior(model, likelihood="categorical")
    posterior.save(tmp_path / "p")
    assert Posterior.load(tmp_path / "p").temperature == pytest.approx(posterior.temperature)


def test_a_prior_that_decides_widths_alone_leaves_the_mean_in_place():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    for prior, decay in ((None, 0.01), (2.0, 0.0)):
        base = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)
        optimizer = Variational(base, n=64, total_steps=40, batch_size=8, prior=prior)
        for _ in range(40):
            with optimizer.sampled_params(train=True):
                model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        found = optimizer.posterior(model, likelihood="gaussian")
        for name, mean in found.prior.mean.items():
            assert torch.equal(mean, found.mean[name] if prior is None else torch.zeros_like(mean))
