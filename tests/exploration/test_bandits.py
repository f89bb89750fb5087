"""Bandits: exact posteriors against closed forms, late rewards, and regret that grows slowly."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import posterity as po
from networks import perceptron
from posterity.errors import PosterityError
from posterity.exploration import (
    UCB,
    EpsilonGreedy,
    Greedy,
    LinearGaussian,
    NeuralLinear,
    ThompsonSampler,
    VariationalNetwork,
)
from posterity.likelihoods import GaussianLikelihood


def observations(n=60, d=3, arms=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g).double()
    pulled = torch.randint(arms, (n,), generator=g)
    r = (x @ torch.randn(d, arms, generator=g).double()).gather(1, pulled[:, None])[:, 0]
    return x, pulled, r + 0.5 * torch.randn(n, generator=g).double()


def normal_inverse_gamma(x, r, precision, shape, rate):
    """The conjugate posterior in batch form: mean, covariance, shape, rate."""
    p = x.T @ x + precision * np.eye(x.shape[1])
    mean = np.linalg.solve(p, x.T @ r)
    return mean, np.linalg.inv(p), shape + len(r) / 2, rate + 0.5 * (r @ r - mean @ p @ mean)


@pytest.mark.parametrize("pieces", [[60], [1] * 60, [7, 20, 33]])
def test_linear_gaussian_is_the_conjugate_posterior(pieces):
    x, arms, r = observations()
    belief = LinearGaussian(3, 2, prior_precision=0.5, shape=2.0, rate=3.0)
    for part in torch.arange(60).split(pieces):
        belief.update(x[part], arms[part], r[part])
    for arm in range(2):
        rows = arms == arm
        inputs = np.column_stack([x[rows].numpy(), np.ones(int(rows.sum()))])
        mean, covariance, shape, rate = normal_inverse_gamma(inputs, r[rows].numpy(), 0.5, 2.0, 3.0)
        np.testing.assert_allclose(belief.mean[arm], mean, atol=1e-10)
        np.testing.assert_allclose(belief.covariance[arm], covariance, atol=1e-10)
        assert belief.shape[arm].item() == pytest.approx(shape)
        assert belief.rate[arm].item() == pytest.approx(rate, rel=1e-10)


@pytest.mark.parametrize("pieces", [1, 60])
def test_a_vague_prior_leaves_least_squares(pieces):
    x, _, r = observations(arms=1)
    x = 1e3 * x  # in grams, say
    belief = LinearGaussian(3, 1, prior_precision=1e-12, noise_precision=1.0, bias=False)
    for part in torch.arange(60).split(pieces):
        belief.update(x[part], torch.zeros(len(part), dtype=torch.int64), r[part])
    np.testing.assert_allclose(belief.mean[0], np.linalg.lstsq(x.numpy(), r.numpy(), rcond=None)[0], rtol=1e-8)
    mean, std = belief.moments(x[:5])
    hat = x.numpy() @ np.linalg.pinv(x.numpy())
    np.testing.assert_allclose(std[:, 0], np.sqrt(np.diag(hat)[:5]), rtol=1e-6)
    np.testing.assert_allclose(mean[:, 0], (hat @ r.numpy())[:5], rtol=1e-6)


@pytest.mark.parametrize("noise_precision", [None, 4.0])
def test_draws_follow_the_posterior(noise_precision):
    x, arms, r = observations()
    belief = LinearGaussian(3, 2, noise_precision=noise_precision, shape=3.0, rate=2.0)
    belief.update(x, arms, r)
    context = torch.tensor([[0.3, -1.0, 2.0]]).double()
    drawn = belief.draw(context.expand(3000, 3), seed=1, number=0)
    mean, std = belief.moments(context)
    features = torch.cat((context, torch.ones(1, 1)), 1)[0]
    for arm in range(2):
        spread = math.sqrt(features @ belief.covariance[arm] @ features)
        if noise_precision is None:
            a, b = belief.shape[arm].item(), belief.rate[arm].item()
            law = stats.t(2 * a, mean[0, arm].item(), spread * math.sqrt(b / a))
        else:
            law = stats.norm(mean[0, arm].item(), spread / 2)
        assert stats.kstest(drawn[:, arm].numpy(), law.cdf).pvalue > 1e-3
        assert std[0, arm].item() == pytest.approx(law.std())
    for number in (0, 7):  # one decision at a time, or all at once
        torch.testing.assert_close(belief.draw(context, seed=1, number=number), drawn[[number]])


def test_neural_linear_is_a_last_layer_laplace_posterior():
    torch.manual_seed(0)
    network = perceptron(3, 8, 1).double()
    x, _, r = observations(arms=1)
    belief = NeuralLinear(network, 3, noise_precision=4.0, prior_precision=0.25, every=1000)
    belief.update(x, torch.zeros(60, dtype=torch.int64), r)
    posterior = po.laplace(
        network, (x, r[:, None]), likelihood=GaussianLikelihood(4.0), structure="last_layer", prior_precision=1.0
    )
    # The precision of LinearGaussian is in units of the noise: 0.25 · 4 = 1.
    torch.testing.assert_close(belief.linear.covariance[0] / 4, posterior.covariance().matrix)


def test_neural_linear_learns_features():
    torch.manual_seed(0)
    network = perceptron(2, 32, 2, hidden=nn.ReLU)
    belief = NeuralLinear(network, 2, every=200, steps=300, seed=2**62)  # as large as a time in nanoseconds
    x = torch.rand(400, 2) * 2 - 1
    arms = torch.arange(400) % 2
    rewards = torch.where(arms == 0, x.prod(1).sign(), -x.prod(1).sign())  # no linear model can tell
    for part in torch.arange(400).split(50):
        belief.update(x[part], arms[part], rewards[part])
    test = torch.rand(400, 2) * 2 - 1
    right = belief.moments(test)[0].argmax(1) == (test.prod(1) < 0).long()
    assert right.double().mean() > 0.85


def test_variational_network_learns_and_narrows():
    torch.manual_seed(0)
    network = perceptron(1, 16, 2)
    belief = VariationalNetwork(network, 1, noise_precision=10.0, lr=0.05, beta2=0.99, samples=64)
    probe = torch.linspace(-1, 1, 9).unsqueeze(1)
    wide = belief.moments(probe)[1].mean()
    g = torch.Generator().manual_seed(0)
    for _ in range(150):
        x, arms = torch.rand(8, 1, generator=g) * 2 - 1, torch.randint(2, (8,), generator=g)
        belief.update(x, arms, torch.where(arms == 0, x[:, 0], -x[:, 0]))
    mean, std = belief.moments(probe)
    torch.testing.assert_close(mean[:, 0], probe[:, 0].double(), atol=0.25, rtol=0)
    assert std.mean() < 0.3 * wide
    assert belief.posterior().n == 1200


def test_rewards_may_come_late_and_in_any_order():
    x, _, _ = observations()
    rewards = x.sum(1)
    late, straight = (ThompsonSampler(LinearGaussian(3, 2), seed=3) for _ in range(2))
    decisions = late.choose(x)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    for part in order.split(17):
        late.observe(decisions.numbers[part], rewards[part])
    assert len(late.pending) == 0
    straight.belief.update(x, decisions.arms, rewards)
    torch.testing.assert_close(late.belief.mean, straight.belief.mean)
    torch.testing.assert_close(late.belief.covariance, straight.belief.covariance)


def test_whole_rewards_do_not_round_those_that_follow():
    torch.manual_seed(0)
    network = perceptron(1, 4, 2)
    for belief in (NeuralLinear(network, 1), VariationalNetwork(network, 1)):
        policy = Greedy(belief)
        numbers = policy.choose(torch.ones(4, 1)).numbers
        policy.observe(numbers[:2], [1, 0])
        policy.observe(numbers[2:], [0.25, 0.75])
        assert belief._history.columns[2].tolist() == [1.0, 0.0, 0.25, 0.75]


@pytest.mark.parametrize("belief", [NeuralLinear, VariationalNetwork])
def test_networks_are_asked_in_evaluation_mode(belief):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    policy = ThompsonSampler(belief(network, 2))
    policy.choose(torch.randn(1, 2))  # batch normalisation cannot be trained on one context
    policy.belief.moments(torch.randn(4, 2))
    assert network[1].num_batches_tracked == 0
    assert network.training


def test_a_belief_is_not_changed_by_choosing():
    class Told(LinearGaussian):
        known = torch.zeros(1, 2)

        def moments(self, contexts):
            return self.known, torch.ones(1, 2)

    belief = Told(1, 2)
    EpsilonGreedy(belief, epsilon=1.0).choose([[1.0]])
    assert belief.known.tolist() == [[0.0, 0.0]]


def test_policies_do_what_they_say():
    belief = LinearGaussian(1, 3, bias=False, noise_precision=1.0)
    belief.update(torch.ones(30, 1), torch.arange(30) % 2, (torch.arange(30) % 2).float())
    context = torch.ones(1, 1)
    mean, std = belief.moments(context)
    torch.testing.assert_close(mean, torch.tensor([[0.0, 15 / 16, 0.0]]).double())
    torch.testing.assert_close(std, torch.tensor([[0.25, 0.25, 1.0]]).double())
    assert Greedy(belief).choose(context).arms.item() == 1
    assert UCB(belief, width=1.0).choose(context).arms.item() == 1
    assert UCB(belief, width=2.0).choose(context).arms.item() == 2
    many = torch.ones(2000, 1)
    shares = np.bincount(EpsilonGreedy(belief, epsilon=0.3).choose(many).arms, minlength=3) / 2000
    np.testing.assert_allclose(shares, [0.1, 0.8, 0.1], atol=0.03)
    drawn = np.bincount(ThompsonSampler(belief).choose(many).arms, minlength=3) / 2000
    np.testing.assert_allclose(drawn, [best(0), best(1), best(2)], atol=0.03)
    assert Greedy(belief, initial=2).choose(torch.ones(8, 1)).arms.tolist() == [0, 1, 2, 0, 1, 2, 1, 1]


def best(arm):
    """P(arm is best) for independent N(0, ¼²), N(15/16, ¼²), N(0, 1²), by quadrature."""
    means, stds = [0, 15 / 16, 0], [0.25, 0.25, 1.0]
    grid = np.linspace(-6, 6, 20_001)
    density = stats.norm.pdf(grid, means[arm], stds[arm])
    for other in {0, 1, 2} - {arm}:
        density = density * stats.norm.cdf(grid, means[other], stds[other])
    return float(np.trapezoid(density, grid))


def regret_of(policy, weights, contexts, noise):
    """Cumulative regret on r = wᵀx + noise."""
    total, path = 0.0, []
    for x, e in zip(contexts, noise):
        numbers, arms = policy.choose(x)
        values = weights @ x
        policy.observe(numbers, [values[arms].item() + e.item()])
        total += (values.max() - values[arms]).item()
        path.append(total)
    return np.array(path)


def test_thompson_sampling_has_sublinear_regret():
    slopes, gaps = [], []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        weights = torch.randn(4, 5, generator=g).double()
        contexts = torch.randn(400, 5, generator=g).double()
        noise = 0.5 * torch.randn(400, generator=g).double()
        thompson = regret_of(ThompsonSampler(LinearGaussian(5, 4), seed=seed), weights, contexts, noise)
        epsilon = regret_of(EpsilonGreedy(LinearGaussian(5, 4), seed=seed), weights, contexts, noise)
        steps = np.arange(1, 401)
        slopes.append(np.polyfit(np.log(steps[50:]), np.log(thompson[50:]), 1)[0])
        gaps.append(epsilon[-1] - thompson[-1])
    assert np.mean(slopes) <= 0.6
    assert np.mean(gaps) > 0


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda p: p.observe([7], [1.0]), "decisions that wait"),
        (lambda p: p.observe([0, 0], [1.0, 1.0]), "each once"),
        (lambda p: p.observe([0], [1.0, 2.0]), "rewards: expected 1"),
        (lambda p: p.observe([0], [float("nan")]), "rewards: expected finite"),
        (lambda p: p.choose(torch.ones(2, 4)), r"contexts: expected shape \(B, 2\)"),
        (lambda p: p.choose(torch.full((1, 2), torch.nan)), "contexts: expected finite"),
        (lambda p: EpsilonGreedy(p.belief, epsilon=2.0), "epsilon: expected a probability"),
        (lambda p: UCB(p.belief, width=-1.0), "width"),
        (lambda p: Greedy(p.belief, initial=0.5), "initial: expected a whole number >= 0"),
        (lambda p: Greedy("belief"), "belief: expected a Belief"),
        (lambda p: LinearGaussian(0, 2), "features and arms"),
        (lambda p: p.choose([["a", "b"]]), "expected arrays of numbers"),
        (lambda p: p.belief.update(torch.full((1, 2), torch.nan), torch.zeros(1).long(), torch.ones(1)), "contexts"),
        (lambda p: p.belief.update(torch.ones(2, 2), torch.zeros(2).long(), torch.ones(2, 1)), "shape"),
        (lambda p: VariationalNetwork(nn.Linear(2, 2), 2, samples=1), "samples: expected a whole number >= 2"),
        (lambda p: LinearGaussian(2, 2, noise_precision=0.0), "noise_precision"),
        (lambda p: NeuralLinear(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), 2), "outputs that a linear layer makes"),
    ],
)
def test_mistakes_are_named(act, message):
    policy = ThompsonSampler(LinearGaussian(2, 2))
    policy.choose(torch.ones(2))
    with pytest.raises(PosterityError, match=message):
        act(policy)
    assert policy.pending.tolist() == [0]
