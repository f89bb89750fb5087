"""Fisher information and per-example gradients against losses differentiated one at a time."""

import pytest
import torch
from torch import Tensor, nn

from curvature.cases import CASES, B, K
from networks import perceptron
from posterity.batches import batches
from posterity.curvature import (
    diagonal_fisher,
    gradient_moments,
    per_example_gradient_norms,
    per_example_gradients,
    per_example_squared_gradients,
)
from posterity.errors import InvalidInput
from posterity.inputs import call, take
from posterity.likelihoods import likelihood
from posterity.trees import to_vector, trainable

pytestmark = pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
Y = torch.tensor([0, 2, 1, 1, 0])


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def one_by_one(model: nn.Module, inputs: object, y: Tensor) -> Tensor:
    """The gradient of each example's cross-entropy, (B, P)."""
    rows = []
    for n in range(B):
        loss = nn.functional.cross_entropy(call(model, take(inputs, slice(n, n + 1))), y[n : n + 1])
        found = torch.autograd.grad(loss, list(trainable(model).values()), materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_each_example(name: str) -> None:
    model, inputs = CASES[name].build()
    g = one_by_one(model, inputs, Y)
    data = batches((inputs, Y), batch_size=3)
    first, second = gradient_moments(model, data, "categorical")
    close(to_vector(first), g.sum(0))
    close(to_vector(second), g.square().sum(0))
    close(to_vector(diagonal_fisher(model, data, "categorical", "empirical")), g.square().sum(0))
    batch = batches((inputs, Y)).take(torch.arange(B))
    close(per_example_gradient_norms(model, batch, "categorical"), g.norm(dim=1))
    written = per_example_gradients(model, batch, "categorical")
    close(torch.cat([w.reshape(B, -1) for w in written.values()], 1), g)


def test_the_true_fisher_is_the_expectation_over_the_models_own_labels() -> None:
    model, inputs = CASES["tokens"].build()
    p = model(inputs).softmax(-1).detach()
    wanted = sum((p[:, k : k + 1] * one_by_one(model, inputs, torch.full((B,), k)).square()).sum(0) for k in range(K))
    for size in (1, 2, 5):
        data = batches((inputs, Y), batch_size=size)
        close(to_vector(diagonal_fisher(model, data, "categorical")), wanted)


def test_drawn_labels_are_right_on_average() -> None:
    model, inputs = CASES["mlp"].build()
    data = batches((inputs, Y))
    exact = to_vector(diagonal_fisher(model, data, "categorical"))
    drawn = to_vector(diagonal_fisher(model, data, "categorical", "sampled", samples=3000))
    torch.testing.assert_close(drawn, exact, rtol=0.15, atol=0.02 * exact.max().item())
    again = to_vector(diagonal_fisher(model, data, "categorical", "sampled", samples=3000))
    assert torch.equal(drawn, again)


def test_the_loss_of_a_sequence_is_the_sum_over_its_positions() -> None:
    torch.manual_seed(0)
    model = perceptron(4, 5, K).double()
    x, y = torch.randn(B, 2, 4, dtype=torch.float64), torch.randint(0, K, (B, 2))
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for n in range(B):
        loss = nn.functional.cross_entropy(model(x[n]), y[n], reduction="sum")
        total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).square()
    close(to_vector(per_example_squared_gradients(model, batches((x, y)), "categorical")), total)


def test_labels_are_drawn_with_seeds_of_any_size() -> None:
    model, inputs = CASES["mlp"].build()
    few, many, same = (
        diagonal_fisher(model, (inputs, Y), "categorical", "sampled", seed=seed)["0.weight"] for seed in (5, 2**62, 5)
    )
    assert torch.equal(few, same)
    assert not torch.equal(few, many)


def test_only_the_parameters_asked_for() -> None:
    model, inputs = CASES["image"].build()
    batch = batches((inputs, Y)).take(torch.arange(B))
    everything = per_example_gradients(model, batch, "categorical")
    some = per_example_gradients(model, batch, "categorical", ["3.weight"])
    assert list(some) == ["3.weight"]
    close(some["3.weight"], everything["3.weight"])


def test_gradients_of_half_precision_are_in_float32() -> None:
    model, inputs = CASES["mlp"].build()
    model, inputs = model.bfloat16(), inputs.bfloat16()
    batch = batches((inputs, Y)).take(torch.arange(B))
    residual = model(inputs).float().softmax(-1) - nn.functional.one_hot(Y, K)
    found = per_example_gradients(model, batch, "categorical")["4.bias"]
    torch.testing.assert_close(found, residual, rtol=1e-2, atol=1e-3)


def test_what_does_not_fit_is_named() -> None:
    model, inputs = CASES["mlp"].build()
    with pytest.raises(InvalidInput, match="samples: expected a whole number >= 1, got 0"):
        diagonal_fisher(model, batches((inputs, Y)), "categorical", "sampled", samples=0)
    with pytest.raises(InvalidInput, match="kind: expected 'true', 'sampled' or 'empirical'"):
        diagonal_fisher(model, batches((inputs, Y)), "categorical", "exact")
    with pytest.raises(InvalidInput, match=r"labels: expected integers in 0..2"):
        per_example_squared_gradients(model, batches((inputs, Y + 2)), likelihood("categorical"))
    for gradients in (per_example_gradients, per_example_gradient_norms):
        with pytest.raises(InvalidInput, match=r"batch: expected a Batch, .*, got 'tuple'"):
            gradients(model, (inputs, Y), "categorical")
