"""What the studies of memories claim, on small problems: gradients, pairs of classes, another architecture."""

from __future__ import annotations

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import posterity as po
from networks import perceptron
from posterity.adaptation import (
    FineTuning,
    FunctionDivergence,
    KPrior,
    adapt,
    k_prior,
    learn_stream,
    reconstruction_error,
    remember,
    select,
    split,
)
from posterity.adaptation.penalties.kprior import outputs_of
from posterity.batches import Batch


@pytest.fixture(scope="module")
def digits():
    """700 digits to learn from, and 500 others."""
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = (x / 16).float()[order], y[order]
    return (x[:700], y[:700]), (x[700:1200], y[700:1200])


def test_more_memory_reconstructs_the_gradient_of_the_past_better(digits):
    x, y = digits[0][0][:300].double(), digits[0][1][:300]
    torch.manual_seed(0)
    model = nn.Linear(64, 10).double()
    steps = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        steps.zero_grad()
        value = nn.functional.cross_entropy(model(x), y, reduction="sum")
        value = value + 0.5 * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    steps.step(loss)
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
    away = copy.deepcopy(model)
    with torch.no_grad():
        for p in away.parameters():
            p += 0.5 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(1))
    everything = remember(model, (x, y))
    errors = [reconstruction_error(k_prior(model, posterior), away, posterior, everything)]
    for size in (30, 150, 300):
        found = [
            reconstruction_error(
                k_prior(model, posterior, select(model, posterior, (x, y), size, seed=seed)),
                away,
                posterior,
                everything,
            )
            for seed in range(3)
        ]
        errors.append(sum(found) / 3)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5  # all inputs: the gradient of the past, up to what L-BFGS leaves of it at the minimum


def test_a_k_prior_keeps_classes_that_fine_tuning_forgets(digits):
    tasks = split(*digits, [(0, 1), (2, 3), (4, 5)], scenario="single-head")
    options = {"epochs": 15, "lr": 5e-3, "batch_size": 64}
    found = {}
    for strategy in (FineTuning(options), KPrior(options, size=40, prior_precision=1e-5)):
        torch.manual_seed(0)
        found[type(strategy)] = learn_stream(perceptron(64, 50, 10), tasks, strategy).accuracy[-1]
    assert found[FineTuning][0] < 0.1
    assert found[KPrior].min() > 0.7


def test_another_network_learns_the_old_one_from_a_few_examples(digits):
    train, test = digits
    torch.manual_seed(0)
    old = perceptron(64, 40, 10)
    posterior = po.fit(old, train, epochs=15, seed=0).posterior
    assert not posterior.prior_pulls
    new = perceptron(64, 60, 10)
    memory = select(old, posterior, train, 70)
    result = adapt(old, posterior, memory=memory, into=new)
    held = Batch(*test, torch.arange(len(test[1])))
    accuracy = {name: (outputs_of(m, held).argmax(1) == test[1]).double().mean() for name, m in
                (("old", old), ("adapted", result.model))}  # fmt: skip
    assert accuracy["adapted"] > accuracy["old"] - 0.05
    labels = copy.deepcopy(new)
    po.fit(labels, (memory.inputs, memory.targets), method="adamw", epochs=250, batch_size=70, lr=3e-3)
    divergence = FunctionDivergence(remember(old, test), posterior.likelihood)
    assert divergence.total(result.model) < 0.3 * divergence.total(labels)
