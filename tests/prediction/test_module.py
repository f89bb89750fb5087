"""The predictive as a module: the same numbers as `predict`, in a shape that torch can serve."""

import numpy as np
import pytest
import torch
from torch import nn

from posterity.posterior import Diagonal, LastLayer, Posterior
from posterity.prediction import PredictiveModule, predict
from posterity.trees import snapshot, trainable
from prediction.cases import STRUCTURES, make_case, regression


@pytest.mark.parametrize("kind", [*STRUCTURES, "dropout"])
def test_its_call_is_the_predictive_mean(kind):
    case = make_case(kind)
    module = PredictiveModule(case.model, case.posterior, samples=6, seed=2)
    np.testing.assert_allclose(module(case.inputs), predict(*case, samples=6, seed=2).mean, atol=1e-12)


def test_state_dict_carries_the_whole_predictive():
    case = make_case("diagonal")
    first, second = (PredictiveModule(case.model, case.posterior, samples=4, seed=seed) for seed in (0, 1))
    assert (first(case.inputs) - second(case.inputs)).abs().max() > 1e-3
    second.load_state_dict(first.state_dict())
    assert (first(case.inputs) == second(case.inputs)).all()
    assert not next(first.parameters()).requires_grad


def test_the_model_that_was_given_stays_alone():
    case = make_case("diagonal")
    before = snapshot(case.model.state_dict())
    module = PredictiveModule(case.model, case.posterior, samples=2).train()
    module.to(torch.float32)(case.inputs.float())
    assert case.model.training
    assert not module.model.training
    assert all(bool((t == before[name]).all()) for name, t in case.model.state_dict().items())


def test_gradients_in_the_inputs_flow():
    case, _, _ = regression()
    x = case.inputs.clone().requires_grad_()
    module = PredictiveModule(case.model, case.posterior, samples=5)
    (gradient,) = torch.autograd.grad(module(x)[:, 0].sum(), x)
    mean = torch.stack([case.posterior.sample(k)["weight"][0] for k in range(5)]).mean(0)
    np.testing.assert_allclose(gradient, mean.expand_as(x), atol=1e-12)


def test_keyword_and_positional_arguments_reach_the_model():
    class Two(nn.Linear):
        def forward(self, x, scale):
            return scale * super().forward(x)

    model = Two(3, 1)
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(model, prior, prior=prior, n=3, ess=3, likelihood="gaussian")
    module, x = PredictiveModule(model, posterior, samples=3), torch.rand(2, 3)
    np.testing.assert_allclose(module(x, scale=torch.tensor(2.0)), 2 * module(x, torch.tensor(1.0)), rtol=1e-6)


def test_a_last_layer_takes_arguments_that_are_not_examples():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, scale, x, mask):
            return self.head(scale * (mask @ torch.tanh(self.body(x))))

    model, mask = Shared(), torch.rand(2, 2)
    weights = snapshot(trainable(model))
    head = {name: t for name, t in weights.items() if name.startswith("head")}
    prior = Diagonal.isotropic(head, 1.0)
    last = LastLayer(prior, {name: t for name, t in weights.items() if name not in head})
    posterior = Posterior.of(model, last, prior=prior, n=3, ess=3, likelihood="gaussian")
    module, x = PredictiveModule(model, posterior, samples=3), torch.rand(2, 3)
    draws = [posterior.sample(k) for k in range(3)]
    hidden = 2 * mask @ torch.tanh(model.body(x))
    wanted = torch.stack([hidden @ d["head.weight"].mT + d["head.bias"] for d in draws]).mean(0)
    torch.testing.assert_close(module(torch.tensor(2.0), x, mask=mask), wanted)
