"""Acquisition: every criterion against enumeration, dense linear algebra or refitting."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from exploration.problems import classifier, dense_covariance, ensemble_of, enumerated
from posterity.errors import PosterityError
from posterity.exploration import acquire, batch_bald
from posterity.exploration._acquire import BATCHES, highest
from posterity.exploration.criteria import SCORES
from posterity.likelihoods import GaussianLikelihood


@pytest.fixture(scope="module")
def dirichlet():
    return torch.tensor(np.random.RandomState(0).dirichlet([1, 1, 1], size=(6, 8)))


@pytest.mark.parametrize(
    ("draws", "wanted"),
    [
        ([[1, 1e-300], [1e-300, 1]], math.log(2)),
        ([[0.5, 0.5], [0.5, 0.5]], 0.0),
        ([[0.9, 0.1], [0.7, 0.3]], 0.0324287858),
    ],
)
def test_bald_of_two_draws(draws, wanted):
    model, posterior, pool = ensemble_of(torch.tensor([draws], dtype=torch.float64))
    picks = acquire(model, posterior, pool, 1, "bald", samples=2)
    assert picks.scores.item() == pytest.approx(wanted, abs=1e-9)


def test_scores_equal_enumeration(dirichlet):
    model, posterior, pool = ensemble_of(dirichlet)
    ask = {name: acquire(model, posterior, pool, 6, name, samples=8) for name in ("bald", "entropy", "margin")}
    for name, picks in ask.items():
        assert (picks.scores.diff() <= 0).all(), name
    mean = dirichlet.mean(1)
    for i, score in zip(ask["bald"].ids, ask["bald"].scores):
        assert score.item() == pytest.approx(enumerated(dirichlet[i : i + 1]), abs=1e-9)
    entropy = -(mean * mean.log()).sum(1)
    torch.testing.assert_close(ask["entropy"].scores, entropy[ask["entropy"].ids])
    best = mean.sort(1, descending=True).values
    torch.testing.assert_close(ask["margin"].scores, (1 - best[:, 0] + best[:, 1])[ask["margin"].ids])


def test_batch_bald_is_greedy_enumeration(dirichlet):
    model, posterior, pool = ensemble_of(dirichlet)
    picks = acquire(model, posterior, pool, 4, "batch_bald", samples=8)
    chosen: list[int] = []
    for i, total in zip(picks.ids.tolist(), picks.scores.cumsum(0).tolist()):
        values = {j: enumerated(dirichlet[[*chosen, j]]) for j in range(6) if j not in chosen}
        assert i == max(values, key=values.get)
        assert total == pytest.approx(values[i], abs=1e-9)
        chosen.append(i)
    assert chosen[:3] == [2, 3, 1]
    np.testing.assert_allclose(picks.scores.cumsum(0)[:3], [0.2661479314, 0.5015356923, 0.7109357785], atol=1e-9)


def test_a_copy_adds_nothing_when_draws_are_certain():
    probs = torch.eye(2).double().expand(2, 2, 2).clamp(1e-300, 1)
    model, posterior, pool = ensemble_of(probs)
    assert acquire(model, posterior, pool, 2, "batch_bald", samples=2).scores.tolist() == pytest.approx(
        [math.log(2), 0.0], abs=1e-12
    )
    assert acquire(model, posterior, pool, 2, "bald", samples=2).scores.tolist() == pytest.approx([math.log(2)] * 2)


def test_sampled_configurations_come_close(dirichlet, monkeypatch):
    exact = batch_bald.greedy(dirichlet, 4)[1]
    monkeypatch.setattr(batch_bald, "CONFIGURATIONS", 20)
    joint, generator = batch_bald.JointProbabilities.empty(8), torch.Generator().manual_seed(0)
    for i in (2, 3):
        joint = joint.joined(dirichlet[i], generator)
    assert not joint.sampled
    monkeypatch.setattr(batch_bald, "CONFIGURATIONS", 20_000)
    joint = joint._draw(generator).joined(dirichlet[1], generator)
    noise = -(dirichlet * dirichlet.log()).sum(2).mean(1)
    estimate = joint.entropy() - noise[[2, 3, 1]].sum().item()
    assert estimate == pytest.approx(sum(exact[:3]), abs=0.02)
    onward = joint.entropy_with(dirichlet[[0]]).item() - noise[[2, 3, 1, 0]].sum().item()
    assert onward == pytest.approx(enumerated(dirichlet[[2, 3, 1, 0]]), abs=0.02)


def test_batches_of_hundreds_do_not_vanish():
    joint, generator = batch_bald.JointProbabilities.empty(4), torch.Generator().manual_seed(0)
    for _ in range(400):  # 10⁻⁴⁰⁰ is no double
        joint = joint.joined(torch.full((4, 10), 0.1, dtype=torch.float64), generator)
    assert joint.entropy() == pytest.approx(400 * math.log(10))


@pytest.mark.parametrize("structure", ["full", "last_layer"])
def test_linearised_information_is_a_log_determinant(structure):
    model, posterior, pool = classifier(structure)
    v, curvature = dense_covariance(model, posterior, pool)

    def information(rows):
        index = torch.tensor([3 * i + j for i in rows for j in range(3)])
        block = torch.eye(len(index)).double() + v[index][:, index] @ curvature[index][:, index]
        return 0.5 * torch.linalg.slogdet(block).logabsdet.item()

    single = acquire(model, posterior, pool, 12, "bald_linearised")
    for i, score in zip(single.ids.tolist(), single.scores.tolist()):
        assert score == pytest.approx(information([i]), abs=1e-9)
    batch = acquire(model, posterior, pool, 5, "batch_bald_linearised")
    chosen: list[int] = []
    for i, total in zip(batch.ids.tolist(), batch.scores.cumsum(0).tolist()):
        values = {j: information([*chosen, j]) for j in range(12) if j not in chosen}
        assert i == max(values, key=values.get)
        assert total == pytest.approx(values[i], abs=1e-8)
        chosen.append(i)


def test_linearised_bald_is_exact_for_linear_regression():
    torch.manual_seed(0)
    x = torch.randn(20, 2).double()
    model = nn.Linear(2, 1, bias=False).double()
    posterior = po.laplace(
        model, (x, x[:, :1]), likelihood=GaussianLikelihood(4.0), structure="full", prior_precision=1.0
    )
    pool = torch.randn(5, 2).double()
    drawn = acquire(model, posterior, pool, 5, "bald", samples=2000)
    exact = acquire(model, posterior, pool, 5, "bald_linearised")
    torch.testing.assert_close(drawn.scores[drawn.ids.argsort()], exact.scores[exact.ids.argsort()], atol=0, rtol=0.1)
    sigma = torch.linalg.inv(4 * x.T @ x + torch.eye(2).double())
    wanted = 0.5 * torch.log(1 + 4 * ((pool @ sigma) * pool).sum(1))
    torch.testing.assert_close(exact.scores, wanted[exact.ids])


def ridge(x, y):
    return np.linalg.solve(2.0 * x.T @ x + np.eye(x.shape[1]), 2.0 * x.T @ y)


def loo_loss(x, y):
    """Mean leave-one-out loss of ridge regression with noise precision 2, by refitting."""
    left_out = [y[i] - x[i] @ ridge(np.delete(x, i, 0), np.delete(y, i)) for i in range(len(y))]
    return np.mean([r**2 - 0.5 * math.log(2 / (2 * math.pi)) for r in left_out])


def test_leave_one_out_reduction_equals_refitting_linear_regression():
    rng = np.random.default_rng(0)
    x, pool = rng.normal(size=(12, 3)), rng.normal(size=(4, 3))
    y = x @ [1.0, -1.0, 0.5] + rng.normal(size=12)
    w, sigma = ridge(x, y), np.linalg.inv(2.0 * x.T @ x + np.eye(3))
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data.copy_(torch.tensor(w))
    data = (torch.tensor(x), torch.tensor(y).unsqueeze(1))
    posterior = po.laplace(model, data, likelihood=GaussianLikelihood(2.0), structure="full", prior_precision=1.0)
    picks = acquire(model, posterior, torch.tensor(pool), 4, "leave_one_out", labelled=data)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    for i, score in zip(picks.ids.tolist(), picks.scores.tolist()):
        spread = math.sqrt(pool[i] @ sigma @ pool[i] + 0.5)
        after = 0.0
        for node, weight in zip(nodes, weights / weights.sum()):
            bigger = np.vstack([x, pool[i]]), np.append(y, pool[i] @ w + spread * node)
            left_out = [
                bigger[1][j] - bigger[0][j] @ ridge(np.delete(bigger[0], j, 0), np.delete(bigger[1], j))
                for j in range(12)
            ]
            after += weight * np.mean([r**2 - 0.5 * math.log(2 / (2 * math.pi)) for r in left_out])
        assert score == pytest.approx(loo_loss(x, y) - after, abs=1e-9)


def test_leave_one_out_reduction_follows_refitting_logistic_regression():
    rng = np.random.default_rng(0)
    n = 30
    x, pool = rng.normal(size=(n, 2)), rng.normal(size=(8, 2))
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)

    def fitted(inputs, labels):
        """Ridge logistic regression by ten steps of Newton's method."""
        w = np.zeros(2)
        for _ in range(10):
            p = 1 / (1 + np.exp(-inputs @ w))
            hessian = (inputs.T * (p * (1 - p))) @ inputs + np.eye(2)
            w = w - np.linalg.solve(hessian, inputs.T @ (p - labels) + w)
        return w

    def loss(inputs, labels):
        """Mean leave-one-out loss of the first n."""
        total = 0.0
        for j in range(n):
            f = inputs[j] @ fitted(np.delete(inputs, j, 0), np.delete(labels, j))
            total += np.logaddexp(0, f) - labels[j] * f
        return total / n

    w = fitted(x, y)
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data.copy_(torch.tensor(w))
    data = (torch.tensor(x), torch.tensor(y).double().unsqueeze(1))
    posterior = po.laplace(model, data, likelihood="bernoulli", structure="full", prior_precision=1.0)
    picks = acquire(model, posterior, torch.tensor(pool), 8, "leave_one_out", labelled=data)
    true = np.zeros(8)
    for i in range(8):
        p = 1 / (1 + np.exp(-pool[i] @ w))
        after = [loss(np.vstack([x, pool[i]]), np.append(y, label)) for label in (0, 1)]
        true[i] = loss(x, y) - (1 - p) * after[0] - p * after[1]
    found = picks.scores[picks.ids.argsort()].numpy()
    assert np.corrcoef(found, true)[0, 1] > 0.95


def test_k_centre_covers_what_is_not_labelled():
    model, posterior, pool = classifier("last_layer")
    labelled = (pool[:2] + 0.01, torch.tensor([0, 1]))
    picks = acquire(model, posterior, pool, 4, "k_centre", labelled=labelled)
    features = model[:2](torch.cat((labelled[0], pool))).detach().numpy()
    covered = [0, 1]
    for i, distance in zip(picks.ids.tolist(), picks.scores.tolist()):
        gaps = [min(np.linalg.norm(features[j + 2] - features[c]) for c in covered) for j in range(12)]
        assert i == int(np.argmax(gaps))
        assert distance == pytest.approx(max(gaps), rel=1e-6)
        covered.append(i + 2)


def test_power_draws_in_proportion_to_scores():
    scores = torch.tensor([1.0, 2.0, 3.0]).double()
    firsts = [highest(scores, torch.arange(3), 2, 2.0, seed)[0].tolist() for seed in range(4000)]
    shares = np.bincount([pair[0] for pair in firsts], minlength=3) / 4000
    np.testing.assert_allclose(shares, np.array([1, 4, 9]) / 14, atol=0.03)
    assert all(a != b for a, b in firsts)


@pytest.mark.parametrize("criterion", [*SCORES, *BATCHES])
def test_every_criterion_on_a_network(criterion):
    model, posterior, pool = classifier("kron")
    before = {name: t.clone() for name, t in model.state_dict().items()}
    labelled = (torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 1]), torch.arange(100, 105))
    ids = torch.arange(20, 32)
    ask = {"labelled": labelled, "exclude": [20, 21, 22], "batch_size": 5, "samples": 8}
    picks = acquire(model, posterior, (pool, torch.zeros(12), ids), 9, criterion, **ask)
    assert sorted(picks.ids.tolist()) == list(range(23, 32))
    again = acquire(model, posterior, (pool, torch.zeros(12), ids), 4, criterion, **{**ask, "batch_size": 64})
    assert again.ids.tolist() == picks.ids[:4].tolist()
    assert len(picks.why) == len(picks.table) == 9
    assert " or " in picks.why[0]
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_classes_are_asked_about_by_margins_that_differ():
    model, posterior, pool = classifier("kron")
    labelled = (pool[:3], torch.tensor([0, 1, 2]), torch.arange(3))
    ask = {"labelled": labelled, "exclude": [0, 1, 2], "samples": 8}
    found = acquire(model, posterior, pool, 4, **ask)
    assert found.criterion == "diverse_margin"
    # The same by hand, over all pairs.
    margins = acquire(model, posterior, pool, 9, "margin", **ask)
    doubt = dict(zip(margins.ids.tolist(), margins.scores.tolist()))
    with torch.no_grad():
        features = pool if isinstance(model, nn.Linear) else model[:-1](pool)
    unit = nn.functional.normalize(features - features.mean(0), dim=1)
    taken = [0, 1, 2]
    for i, score in zip(found.ids.tolist(), found.scores.tolist()):
        worth = {j: d * (1 - (unit[j] @ unit[taken].T).max().item()) for j, d in doubt.items() if j not in taken}
        assert i == max(worth, key=worth.get)
        assert score == pytest.approx(worth[i])
        taken.append(i)
    assert acquire(model, posterior, pool, 4, power=1.0).criterion == "margin"


def test_copies_of_a_doubt_are_asked_about_once():
    model, posterior, pool = classifier("kron")
    most = int(acquire(model, posterior, pool, 1, "margin", samples=0).ids)
    copied = torch.cat([pool, pool[[most] * 5]])
    assert len({*range(12, 17), most} & set(acquire(model, posterior, copied, 6, samples=0).ids.tolist())) == 1
    assert {*range(12, 17), most} == set(acquire(model, posterior, copied, 6, "margin", samples=0).ids.tolist())


def test_no_draws_means_the_mean_weights():
    model, posterior, pool = classifier("full")
    picks = acquire(model, posterior, pool, 12, "margin", samples=0)
    best = model(pool).detach().softmax(1).sort(1, descending=True).values
    torch.testing.assert_close(picks.scores, (1 - best[:, 0] + best[:, 1])[picks.ids])


def test_regressions_and_binary_labels_say_why():
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    model = nn.Linear(1, 1)
    posterior = po.laplace(model, (x, x), structure="full", prior_precision=1.0, noise_precision=4.0)
    found = acquire(model, posterior, x, 1)
    assert found.criterion == "bald"
    assert " ± " in found.why[0]
    binary = po.laplace(model, (x, (x > 0).float()), likelihood="bernoulli", structure="full", prior_precision=1.0)
    assert acquire(model, binary, x, 2).criterion == "diverse_margin"
    for criterion in ("bald", "batch_bald", "margin", "diverse_margin"):
        assert "1 with probability" in acquire(model, binary, x, 2, criterion).why[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criterion": "best"}, "criterion: expected one of"),
        ({"k": 13}, r"k: expected a number of examples in 1..12"),
        ({"k": 12, "exclude": [3]}, r"1..11"),
        ({"power": -1.0}, "power: expected a positive"),
        ({"power": 1.0, "criterion": "batch_bald"}, "power: expected a score of single examples"),
        ({"criterion": "leave_one_out"}, "leave_one_out: expected the labelled data"),
        ({"pool": torch.zeros(0, 3)}, "pool: expected at least one"),
        ({"samples": 1, "criterion": "bald"}, "samples: expected a whole number >= 2"),  # one draw agrees with itself
        ({"exclude": torch.arange(12) < 3}, "exclude: expected ids"),
        ({"pool": (torch.zeros(4, 3).double(), torch.zeros(4), torch.tensor([1, 2, 2, 3]))}, "ids: expected each only"),
        ({"candidates": 0}, "candidates: expected"),
        ({"seed": "now"}, "seed: expected a whole number, got 'now'"),
        ({"posterior": None}, "posterior: expected a Posterior, got 'NoneType'"),
        ({"model": "model"}, "model: expected a Module, got 'str'"),
        ({"candidates": 2.5}, "candidates: expected a whole number >= 1"),
    ],
)
def test_mistakes_are_named(change, message):
    model, posterior, pool = classifier("full")
    with pytest.raises(PosterityError, match=message):
        acquire(**{"model": model, "posterior": posterior, "pool": pool, "k": 3, **change})


@pytest.mark.parametrize("criterion", ["bald", "batch_bald"])
def test_a_point_has_nothing_to_disagree_about(criterion):
    model, point, pool = ensemble_of(torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]]))
    with pytest.raises(PosterityError, match="a point estimate has no disagreement"):
        acquire(model, point, pool, 1, criterion)
    assert acquire(model, point, pool, 1, "entropy").ids.tolist() == [0]


def test_a_pool_keeps_its_order():
    model, posterior, pool = classifier("full")
    data = TensorDataset(pool, torch.zeros(12), torch.arange(20, 32))
    wanted = acquire(model, posterior, (pool, torch.zeros(12), torch.arange(20, 32)), np.int64(4)).ids.tolist()
    assert acquire(model, posterior, DataLoader(data, batch_size=5), 4).ids.tolist() == wanted
    for loader in (DataLoader(data, shuffle=True), DataLoader(data, sampler=range(11, -1, -1))):
        with pytest.raises(PosterityError, match="pool: expected a loader in the order of its data"):
            acquire(model, posterior, loader, 4)


class Watched(nn.Sequential):
    """A network that remembers the largest batch it saw."""

    largest = 0

    def forward(self, x):
        self.largest = max(self.largest, len(x))
        return super().forward(x)


@pytest.mark.parametrize(
    "criterion", ["k_centre", "diverse_margin", "batch_bald_linearised", "entropy", "bald_linearised"]
)
def test_large_pools_are_read_in_pieces(criterion):
    torch.manual_seed(0)
    x, y = torch.randn(600, 2), torch.arange(600) % 2
    model = Watched(nn.Linear(2, 2))
    posterior = po.laplace(model, (x[:20], y[:20]), structure="full", prior_precision=1.0)
    model.largest = 0
    acquire(model, posterior, x, 2, criterion, labelled=(x[:20], y[:20]), samples=2)
    assert model.largest <= 256


def test_margin_needs_classes():
    x = torch.linspace(-1, 1, 10).unsqueeze(1)
    model = nn.Linear(1, 1)
    posterior = po.laplace(model, (x, x), structure="full", prior_precision=1.0, noise_precision=4.0)
    for criterion in ("margin", "batch_bald"):
        with pytest.raises(PosterityError, match="expected"):
            acquire(model, posterior, x, 2, criterion)


def test_all_pairs_of_a_batch_are_worth_no_more_than_their_sum(dirichlet):
    for i, j in itertools.combinations(range(6), 2):
        joint = sum(batch_bald.greedy(dirichlet[[i, j]], 2)[1])
        assert joint == pytest.approx(enumerated(dirichlet[[i, j]]), abs=1e-9)
        assert joint <= enumerated(dirichlet[[i]]) + enumerated(dirichlet[[j]]) + 1e-12
