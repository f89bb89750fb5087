"""Prediction covariances, their products and kernels against Jacobians written out."""

import pytest
import torch

from curvature.cases import CASES, B, K, covariance, dense, jacobians
from networks import perceptron
from posterity.curvature import (
    DiagonalCovariance,
    FullCovariance,
    kernel,
    prediction_covariance,
    prediction_covariance_product,
    pullback,
    pushforward,
    self_influence,
)
from posterity.errors import InvalidInput
from posterity.inputs import take
from posterity.posterior import Full
from posterity.trees import from_vector, snapshot, to_vector, trainable

pytestmark = pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
SHAPES = ("diagonal", "kronecker", "kronecker weights", "full")


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_every_question_equals_the_jacobian_written_out(name: str, shape: str) -> None:
    model, inputs = CASES[name].build()
    sigma = covariance(model, shape)
    j = jacobians(model, inputs)
    matrix = dense(sigma)
    v = j @ matrix @ j.mT
    e = torch.randn(B, K, dtype=torch.float64)
    close(prediction_covariance(model, inputs, sigma), v)
    ve = (v @ e.unsqueeze(-1)).squeeze(-1)
    close(prediction_covariance_product(model, inputs, sigma, e), ve)
    close(self_influence(model, inputs, sigma, e), (e * ve).sum(-1))
    others = take(inputs, slice(1, 4))
    close(kernel(model, inputs, others, sigma), torch.einsum("nkp,pq,mlq->nmkl", j, matrix, j[1:4]))


def test_experts_that_meet_only_some_of_the_examples() -> None:
    for seed in range(20):
        model, inputs = CASES["routed"].build(seed)
        sigma, e = covariance(model, "diagonal"), torch.randn(B, K, dtype=torch.float64)
        j, matrix = jacobians(model, inputs), dense(sigma)
        ve = torch.einsum("nkp,pq,nlq,nl->nk", j, matrix, j, e)
        close(prediction_covariance_product(model, inputs, sigma, e), ve)
        wanted = torch.einsum("nkp,pq,mlq->nmkl", j, matrix, j[:1])
        close(kernel(model, inputs, inputs[:1], sigma), wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["image", "tokens", "outside"])
def test_little_memory_changes_nothing(name: str, shape: str) -> None:
    model, inputs = CASES[name].build()
    sigma = covariance(model, shape)
    e = torch.randn(B, K, dtype=torch.float64)
    for memory in (1, 20_000):
        close(
            prediction_covariance(model, inputs, sigma, memory=memory),
            prediction_covariance(model, inputs, sigma),
        )
        close(
            prediction_covariance_product(model, inputs, sigma, e, memory=memory),
            prediction_covariance_product(model, inputs, sigma, e),
        )
        close(kernel(model, inputs, inputs, sigma, memory=memory), kernel(model, inputs, inputs, sigma))


@pytest.mark.parametrize(
    "names", [["6.weight", "6.bias"], ["6.bias", "6.weight"], ["6.weight"], ["2.weight", "6.bias"]]
)
def test_a_covariance_of_some_parameters_leaves_the_others_fixed(names: list[str]) -> None:
    torch.manual_seed(0)
    model = perceptron(4, 6, 5, 4, K).double()
    x, e = torch.randn(B, 4, dtype=torch.float64), torch.randn(B, K, dtype=torch.float64)
    places = from_vector(torch.arange(sum(p.numel() for p in model.parameters())), trainable(model))
    j = jacobians(model, x)[..., torch.cat([places[name].flatten() for name in names])]
    root = torch.randn(j.shape[-1], j.shape[-1], dtype=torch.float64)
    full = FullCovariance({name: places[name].shape for name in names}, root @ root.T)
    v = j @ full.matrix @ j.mT
    close(prediction_covariance(model, x, full), v)
    close(prediction_covariance(model, x, full, memory=1000), v)
    close(prediction_covariance_product(model, x, full, e), (v @ e.unsqueeze(-1)).squeeze(-1))
    variance = {name: torch.rand_like(places[name], dtype=torch.float64) for name in names}
    close(
        prediction_covariance(model, x, DiagonalCovariance(variance)),
        j * torch.cat([s.flatten() for s in variance.values()]) @ j.mT,
    )


@pytest.mark.parametrize("name", CASES)
def test_directions_go_forward_and_back(name: str) -> None:
    model, inputs = CASES[name].build()
    j = jacobians(model, inputs)
    direction = torch.randn(j.shape[-1], dtype=torch.float64)
    v = torch.randn(B, K, dtype=torch.float64)
    close(pushforward(model, inputs, from_vector(direction, trainable(model))), j @ direction)
    close(to_vector(pullback(model, inputs, v)), torch.einsum("nkp,nk->p", j, v))


def test_directions_of_a_sparse_table_are_dense() -> None:
    model, inputs = CASES["tokens"].build()
    v = torch.randn(B, K, dtype=torch.float64)
    wanted = pullback(model, inputs, v)["table.weight"]
    model.table.sparse = True
    close(pullback(model, inputs, v)["table.weight"], wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_covariance_times_a_direction(shape: str) -> None:
    model, _ = CASES["tokens"].build()
    sigma = covariance(model, shape)
    matrix = dense(sigma)
    direction = torch.randn(len(matrix), dtype=torch.float64)
    tree = from_vector(direction, trainable(model))
    close(to_vector(sigma.times(tree)), matrix @ direction)
    close(to_vector(sigma.scaled(0.5).times(tree)), 0.5 * matrix @ direction)


def test_products_exist_for_outputs_with_more_axes() -> None:
    torch.manual_seed(0)
    model = perceptron(4, 5, K).double()
    x, e = torch.randn(B, 2, 4, dtype=torch.float64), torch.randn(B, 2, K, dtype=torch.float64)
    sigma = covariance(model, "kronecker")
    j = jacobians(model, x)
    ve = (j @ dense(sigma) @ j.mT @ e.flatten(1).unsqueeze(-1)).squeeze(-1)
    close(prediction_covariance_product(model, x, sigma, e), ve.unflatten(1, (2, K)))
    close(self_influence(model, x, sigma, e), (e.flatten(1) * ve).sum(-1))


def test_what_does_not_fit_is_named() -> None:
    model, x = CASES["mlp"].build()
    sigma = covariance(model, "diagonal")
    with pytest.raises(InvalidInput, match=r"e: expected shape \(5, 3\)"):
        prediction_covariance_product(model, x, sigma, torch.zeros(B, K + 1))
    with pytest.raises(InvalidInput, match="inputs: expected at least one example"):
        prediction_covariance(model, x[:0], sigma)
    with pytest.raises(InvalidInput, match="inputs: expected what the model takes, got float64"):
        prediction_covariance(model, x[:, :2], sigma)
    with pytest.raises(InvalidInput, match="names: expected parameters among"):
        prediction_covariance(model, x, DiagonalCovariance({"nowhere": torch.ones(3)}))
    with pytest.raises(InvalidInput, match=r"covariance of '0.weight': expected 24 variances, got 3"):
        prediction_covariance(model, x, DiagonalCovariance({"0.weight": torch.ones(3)}))
    with pytest.raises(InvalidInput, match=r"direction of '0.bias': expected shape"):
        pushforward(model, x, {"0.bias": torch.ones(2)})
    with pytest.raises(InvalidInput, match="v: expected shape"):
        pullback(model, x, torch.ones(2))


def test_a_posterior_is_no_covariance() -> None:
    model, x = CASES["mlp"].build()
    weights = snapshot(trainable(model))
    size = sum(t.numel() for t in weights.values())
    posterior = Full(weights, torch.eye(size, dtype=torch.float64))  # it has variances, and more than those
    with pytest.raises(InvalidInput, match=r"covariance: expected a DiagonalCovariance.* got 'Full'"):
        prediction_covariance(model, x, posterior)
