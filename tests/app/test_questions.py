"""Neighbours and first-order effects against Jacobians written out by autograd."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from posterity.app import from_map, write_html
from posterity.app.questions import Questions
from posterity.errors import PosterityError
from posterity.learning import laplace
from posterity.memory import memory_map
from posterity.optim import IVON


@pytest.fixture(scope="module")
def dense(maps, digits):
    """J (N, K, P) of every training example and Σ (P, P), with every entry."""
    trained = maps[1].trained
    (x, _), _ = digits
    model, covariance = trained.model, trained.covariance
    eye = torch.eye(10)
    weight = torch.einsum("kl,ni->nkli", eye, x).reshape(len(x), 10, -1)  # the output k of W x depends on row k alone
    jacobian = torch.cat([weight, eye.expand(len(x), 10, 10)], dim=-1).double()
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
    columns = []
    for flat in torch.eye(jacobian.shape[-1]):
        moved = covariance.times({"weight": flat[:640].reshape(10, 64), "bias": flat[640:]})
        columns.append(torch.cat([moved["weight"].reshape(-1), moved["bias"]]))
    return jacobian, torch.stack(columns).double()


def test_neighbours_by_the_whole_kernel(maps, digits, dense):
    jacobian, sigma = dense
    kernel = torch.einsum("kp,pq,nkq->n", jacobian[20], sigma, jacobian)
    scale = torch.einsum("nkp,pq,nkq->n", jacobian, sigma, jacobian).sqrt()
    cosine = (kernel / (scale[20] * scale)).numpy()
    cosine[20] = -1
    found = Questions(maps[1], digits[1]).neighbours(20, 6)
    order = cosine.argsort()[::-1][:6]
    assert [i for i, _ in found] == order.tolist()
    np.testing.assert_allclose([v for _, v in found], cosine[order], rtol=1e-3)


def test_effects_to_first_order(maps, digits, dense):
    m, ((x, y), (x_test, y_test)) = maps[1], digits
    jacobian, sigma = dense
    model = m.trained.model
    with m.trained.at_mean():
        loss = cross_entropy(model(x_test), y_test)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]).double()
        p = model(x).softmax(-1).detach().double()
    onehot = torch.eye(10).double()
    said = torch.as_tensor(m.columns["loo_prediction"].to_numpy(copy=True))
    moved = torch.einsum("p,pq,nkq->nk", gradient, sigma, jacobian)
    effects = Questions(m, digits[1]).effects()
    np.testing.assert_allclose(effects["remove"], (moved * (p - onehot[y])).sum(-1), rtol=1e-3, atol=1e-8)
    np.testing.assert_allclose(effects["relabel"], (moved * (onehot[said] - onehot[y])).sum(-1), rtol=1e-3, atol=1e-8)


def test_answers_do_not_depend_on_the_order_of_a_loader(maps, digits):
    (x, y), test = digits
    data = TensorDataset(x, y, torch.arange(1000, 1240))
    m = maps[1]
    fixed, shuffled = (memory_map(m.trained.model, m.posterior, DataLoader(data, 32, shuffle=s)) for s in (False, True))
    assert fixed.columns["id"].tolist() != shuffled.columns["id"].tolist()
    one, other = Questions(fixed, test), Questions(shuffled, test)
    near, again = one.neighbours(1020, 6), other.neighbours(1020, 6)
    assert [i for i, _ in near] == [i for i, _ in again]
    np.testing.assert_allclose([v for _, v in again], [v for _, v in near], rtol=1e-4)
    effects = [q.effects().set_index("id").sort_index() for q in (one, other)]
    np.testing.assert_allclose(effects[1], effects[0], rtol=1e-3, atol=1e-7)
    assert [i for i, _ in one.influences(3, 5)] == [i for i, _ in other.influences(3, 5)]
    assert from_map(shuffled).preview is None  # which example stands where is not known


def test_a_loader_that_brings_others_each_time_is_refused(maps, digits):
    (x, y), test = digits
    data = TensorDataset(x, y, torch.arange(1000, 1240))
    some = DataLoader(data, 32, sampler=RandomSampler(data, num_samples=60, generator=torch.Generator().manual_seed(0)))
    m = memory_map(maps[1].trained.model, maps[1].posterior, some)
    for ask in (Questions(m, test).effects, lambda: m.influence(test)):
        with pytest.raises(PosterityError, match="data: expected the same examples at every pass"):
            ask()


def test_answers_leave_the_model_alone(maps, digits):
    """It may be training while a page is open."""
    model = copy.deepcopy(maps[1].trained.model)
    optimizer = IVON(model.parameters(), lr=0.1, ess=240)
    optimizer.attach(model)
    source = from_map(memory_map(model, maps[1].posterior, digits[0]), test=digits[1])
    before = [(p.clone(), p._version) for p in model.parameters()]
    model.register_forward_hook(lambda *_: pytest.fail("the model was asked"))
    assert source.what_if([3], {}).examples == 100
    assert len(source.neighbours(3, 2)) == len(source.influences(3, 2)) == 2
    assert len(source.effects()) == 240
    assert all(torch.equal(p, was) and p._version == number for p, (was, number) in zip(model.parameters(), before))


def test_test_data_keep_their_order(maps, digits):
    loader = DataLoader(TensorDataset(*digits[1]), 10, shuffle=True)
    with pytest.raises(PosterityError, match="test: expected a loader in the order of its data"):
        from_map(maps[1], test=loader)


def test_all_of_the_others_are_neighbours(digits):
    (x, y), _ = digits
    model = torch.nn.Linear(64, 10)
    data = (x[:3], y[:3])
    m = memory_map(model, laplace(model, data, structure="kron", prior_precision=1.0), data)
    assert sorted(i for i, _ in Questions(m).neighbours(1, 6)) == [0, 2]


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_several_outputs(likelihood, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = x[:, :2] if likelihood == "gaussian" else (x[:, :2] > 0).float()
    model = torch.nn.Linear(3, 2)
    posterior = laplace(model, (x, y), likelihood=likelihood, structure="full", prior_precision=1.0)
    m = memory_map(model, posterior, (x, y))
    effects = from_map(m, test=(x[:10], y[:10])).effects()
    influence = m.influence((x[:10], y[:10]))
    np.testing.assert_allclose(effects.set_index("id")["remove"], influence, rtol=1e-4, atol=1e-7)
    assert write_html(m, tmp_path / "map.html", test=(x[:10], y[:10])).stat().st_size > 0
    for test in (None, (x[:10], y[:10])):
        truth = m.what_if(remove=[3, 5]).on(test)
        found = from_map(m, test=test).what_if([3, 5], {})
        assert found.loss_after == pytest.approx(truth.loss_after.mean().item())


def test_test_examples(maps, digits):
    m, (_, (x, y)) = maps[1], digits
    table = Questions(m, digits[1]).test
    with m.trained.at_mean(), torch.no_grad():
        f = m.trained.model(x)
    np.testing.assert_array_equal(table["prediction"], f.argmax(-1))
    np.testing.assert_allclose(table["loss"], cross_entropy(f, y, reduction="none"), rtol=1e-5)
