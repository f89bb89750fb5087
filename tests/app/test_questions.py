"""Neighbours and first-order effects against Jacobians written out by autograd."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from posterity.app.questions import Questions


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


def test_test_examples(maps, digits):
    m, (_, (x, y)) = maps[1], digits
    table = Questions(m, digits[1]).test
    with m.trained.at_mean(), torch.no_grad():
        f = m.trained.model(x)
    np.testing.assert_array_equal(table["prediction"], f.argmax(-1))
    np.testing.assert_allclose(table["loss"], cross_entropy(f, y, reduction="none"), rtol=1e-5)
