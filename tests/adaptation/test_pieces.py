"""Pieces that adaptations are made of: penalties, heads, other shapes, memories, Newton's method, intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import PoissonRegressor
from torch import nn

import posterity as po
from adaptation.problems import around, glm, logistic, network, some
from posterity.adaptation import adapt, heads, select
from posterity.adaptation._measure import _interval, _summary
from posterity.adaptation.heads import Head, find_head, grown
from posterity.adaptation.penalties.penalty import gradient
from posterity.adaptation.penalties.quadratic import Quadratic, Slope, TiltedQuadratic
from posterity.adaptation.penalties.replay import pulled_back
from posterity.adaptation.penalties.residual_curvature import _largest_share, positive_part
from posterity.adaptation.penalties.synaptic import SynapticIntelligence
from posterity.adaptation.solve.newton import ConvexProblem, curvature, minimise
from posterity.adaptation.transfer import fits, padded, widened
from posterity.errors import InvalidInput
from posterity.likelihoods import likelihood
from posterity.posterior import Diagonal, Memory
from posterity.trees import snapshot, trainable

# ── penalties ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gradients_of_many_rows_are_summed_over_chunks():
    net, data = network(), some()
    e = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = pulled_back(net, data.inputs, e, ("0.weight", "2.bias"), chunk=7)
    wanted = torch.autograd.grad((net(data.inputs) * e).sum(), [net[0].weight, net[2].bias])
    torch.testing.assert_close(found["0.weight"], wanted[0])
    torch.testing.assert_close(found["2.bias"], wanted[1])


def test_weights_that_a_penalty_does_not_reach_have_no_gradient():
    net = network()
    found = gradient(Slope({"2.bias": torch.tensor([1.0, 2.0, 3.0])}), net)
    assert found["2.bias"].tolist() == [1.0, 2.0, 3.0]
    assert all((g == 0).all() for name, g in found.items() if name != "2.bias")
    assert gradient(Slope({"2.bias": torch.ones(3)}), net, ("2.bias",)).keys() == {"2.bias"}


def test_a_tilted_quadratic_is_its_three_parts():
    net = network()
    mean = {k: p + 0.1 for k, p in snapshot(trainable(net)).items()}
    rest = Diagonal(
        {k: mean[k] for k in ("0.weight", "0.bias")}, {k: torch.tensor(3.0) for k in ("0.weight", "0.bias")}
    )
    prior, pull = around(net), {"0.bias": torch.full((5,), 0.7).double()}
    one = TiltedQuadratic.of(rest, pull, prior, 1.5, dict(net.named_parameters()))
    parts = Quadratic(rest) + Slope(pull) + 1.5 * Quadratic(prior)
    for name, g in gradient(parts, net).items():
        torch.testing.assert_close(gradient(one, net)[name], g)


def test_directions_that_nobody_has_learnt_do_not_take_weights_away():
    whole = torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64))
    part = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert _largest_share(whole, part) == 1.0
    assert _largest_share(whole, 4 * part) == pytest.approx(0.5)
    assert _largest_share(-whole, part) == 0.0


def test_the_positive_part_of_a_matrix_is_the_nearest_without_negative_eigenvalues():
    matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # eigenvalues 3 and −1
    torch.testing.assert_close(positive_part(matrix), torch.full((2, 2), 1.5, dtype=torch.float64))
    assert torch.equal(positive_part(matrix + 2 * torch.eye(2)), matrix + 2 * torch.eye(2))


def test_synaptic_intelligence_is_damped_by_a_tenth_as_in_its_paper():
    model = nn.Linear(1, 1, bias=False)
    watch = SynapticIntelligence(model)
    watch.path["weight"].fill_(1.0)
    with torch.no_grad():
        model.weight += 1
    watch.consolidate(model)
    assert watch.importance["weight"].item() == pytest.approx(1 / 1.1)
    with pytest.raises(InvalidInput, match="damping"):
        SynapticIntelligence(model, damping=0.0)


# ── heads, other shapes ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_head_is_one_matrix_with_the_bias_as_its_last_column():
    net = network()
    head = find_head(net, some().inputs)
    assert (head.name, head.shape) == ("2", (3, 6))
    tree = {"2.weight": net[2].weight.detach(), "2.bias": net[2].bias.detach()}
    w = head.matrix(tree)
    torch.testing.assert_close(w @ torch.cat((torch.ones(5), torch.ones(1))).double(), net[2](torch.ones(5).double()))
    assert all(torch.equal(head.tree(w)[name], t) for name, t in tree.items())
    flat = torch.cat([tree["2.weight"].reshape(-1), tree["2.bias"]])
    assert torch.equal(w.reshape(-1)[head.order()], flat)
    features = head.features(net, some().inputs, 30, chunk=8)
    torch.testing.assert_close(features @ w.T, net(some().inputs))
    assert not any(module._forward_hooks for module in net.modules())


def test_a_head_as_large_as_newtons_method_can_hold_is_solved(monkeypatch):
    net = network().requires_grad_(False)
    head = find_head(net, some().inputs)
    head.layer.requires_grad_(True)
    for largest, able in ((18, True), (17, False)):
        monkeypatch.setattr(heads, "LARGEST", largest)
        assert heads.solvable_alone(net, head) is able


def test_a_head_that_is_given_more_than_a_row_for_each_example_is_refused():
    model = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(InvalidInput, match="features of the last layer: expected one row"):
        Head("0", model[0]).features(model, torch.zeros(3, 7, 4), 3)


def test_a_grown_head_answers_as_before_and_zero_for_new_classes():
    net, x = network(), some().inputs
    wide = grown(net, find_head(net, x), 5)
    torch.testing.assert_close(wide(x)[:, :3], net(x))
    assert (wide(x)[:, 3:] == 0).all()
    alone = nn.Linear(4, 3, bias=False).double()
    torch.testing.assert_close(grown(alone, find_head(alone, x), 4)(x)[:, :3], alone(x))


def test_what_fits_has_the_same_shape_or_more_rows():
    assert fits(torch.zeros(2, 3), torch.zeros(2, 3))
    assert fits(torch.zeros(2, 3), torch.zeros(4, 3))
    assert not fits(torch.zeros(4, 3), torch.zeros(2, 3))
    assert not fits(torch.zeros(2, 3), torch.zeros(2, 4))
    assert not fits(torch.zeros(2), torch.zeros(2, 3))
    assert fits(torch.zeros(()), torch.zeros(()))
    wide = padded({"a": torch.ones(2, 3), "b": torch.tensor(2.0)}, {"a": torch.zeros(3, 3), "b": torch.zeros(())}, "ab")
    assert wide["a"].sum(1).tolist() == [3.0, 3.0, 0.0]
    assert wide["b"].item() == 2.0


def test_a_matrix_keeps_its_place_among_more_weights():
    before = {"a": torch.zeros(2), "b": torch.zeros(())}
    after = {"b": torch.zeros(()), "c": torch.zeros(1), "a": torch.zeros(3)}
    matrix = torch.arange(9.0).reshape(3, 3)
    found = widened(matrix, before, after)
    place = [2, 3, 0]  # of a₀, a₁ and b in b, c, a₀, a₁, a₂
    assert torch.equal(found[place][:, place], matrix)
    assert found.sum() == matrix.sum()


# ── memories, Newton's method, measured changes ──────────────────────────────────────────────────────────────────


def test_as_many_memories_as_classes_are_one_of_each():
    net, data = network(), some()
    posterior = po.laplace(net, (data.inputs, data.targets), structure="diag", prior_precision=1.0)
    found = select(net, posterior, (data.inputs, data.targets), 3)
    assert sorted(found.targets.tolist()) == [0, 1, 2]
    assert found.weights.tolist() == [int((data.targets == k).sum()) for k in found.targets]
    with pytest.raises(InvalidInput, match=r"size: expected a number of examples in 1\.\.30"):
        select(net, posterior, (data.inputs, data.targets), 31)


def test_classes_share_a_memory_as_evenly_as_they_have_examples():
    net, x = network(), some(30).inputs
    y = torch.tensor([0] * 2 + [1] * 8 + [2] * 20)
    posterior = po.laplace(net, (x, y), structure="diag", prior_precision=1.0)
    found = select(net, posterior, (x, y), 13)
    counts = found.targets.bincount().tolist()
    assert counts[0] == 2
    assert sorted(counts[1:]) == [5, 6]
    for label, n in enumerate((2, 8, 20)):
        assert found.weights[found.targets == label].sum().item() == pytest.approx(n)


@pytest.mark.parametrize("name", ["categorical", "gaussian", "poisson"])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # the latter with probabilities of nearly 0 and 1
def test_the_curvature_is_the_sum_over_examples(name, scale):
    """Also where only the blocks beside the diagonal are computed, because rows of Λ sum to zero."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    outputs = scale * torch.randn(20, 3, generator=generator, dtype=torch.float64).clamp(-0.5, 0.5)
    weights = torch.rand(20, generator=generator, dtype=torch.float64)
    law = likelihood(name)
    wanted = sum(w * torch.kron(s, torch.outer(x, x)) for w, s, x in zip(weights, law.curvature(outputs), features))
    torch.testing.assert_close(curvature(law, features, outputs, weights), wanted)


def test_newton_finds_the_minimum_of_a_poisson_regression():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 3))
    y = generator.poisson(np.exp(x @ np.array([0.5, -0.3, 0.2])))
    weights = generator.uniform(0.5, 2.0, size=50)
    convex = ConvexProblem(
        likelihood("poisson"), torch.tensor(x), torch.tensor(y).double()[:, None], torch.tensor(weights),
        2.0 * torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64),
    )  # fmt: skip
    found = minimise(convex, torch.zeros(3, dtype=torch.float64))
    theirs = PoissonRegressor(alpha=2.0 / weights.sum(), fit_intercept=False, tol=1e-10, max_iter=1000)
    theirs.fit(x, y, sample_weight=weights)
    assert found.theta.numpy() == pytest.approx(theirs.coef_, abs=1e-6)
    assert found.residual < 1e-10
    rate = np.exp(x @ found.theta.numpy())
    assert found.hessian.numpy() == pytest.approx(x.T @ (x * (weights * rate)[:, None]) + 2 * np.eye(3))


def test_the_interval_of_measured_changes_is_students():
    changes = [0.2, -0.1, 0.4, 0.3]
    mean, low, high = _interval(changes)
    wanted = stats.t.interval(0.95, 3, loc=np.mean(changes), scale=stats.sem(changes))
    assert (mean, low, high) == pytest.approx((np.mean(changes), *wanted), rel=1e-4)
    found = _summary([[(1.0, 0.5), (1.2, 0.6)], [(1.1, 0.7), (1.0, 0.6)]], 9)
    assert (found.examples, found.repeats) == (9, 2)
    assert (found.loss, found.change) == pytest.approx((1.05, 0.05))
    assert (found.accuracy, found.accuracy_change) == pytest.approx((0.6, 0.0))
    assert not found.clear
    assert "which may be nothing" in str(found)
    plain = _summary([[(1.0, None), (2.0, None)], [(1.0, None), (2.0, None)]], 3)
    assert plain.accuracy is None
    assert plain.clear
    assert (plain.low, plain.high) == pytest.approx((1.0, 1.0))


def test_a_memory_is_a_memory():
    x, y = logistic(10)
    model, posterior = glm(np.zeros(4), x)
    with pytest.raises(InvalidInput, match="memory: expected a Memory, a number of examples or None"):
        adapt(model, posterior, data=(x, y), remove=[0], memory="all")
    with pytest.raises(InvalidInput, match="memory: expected at least one example"):
        adapt(model, posterior, data=(x, y), remove=[0], memory=0)
    wrong = Memory(x, y, torch.arange(10), torch.ones(10), torch.ones(10, 1).double())
    with pytest.raises(InvalidInput, match="memory: expected this model's predictions"):
        adapt(model, posterior, memory=wrong, remove=[0])
