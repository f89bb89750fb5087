"""torch.compile of the model and of the step."""

import pytest
import torch

from optim.reference import data, loss, network
from posterity.optim import IVON

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
SETTINGS = {"lr": 0.2, "ess": 50, "betas": (0.9, 0.99), "hess_init": 0.5}


def train(model, optimizer, call, step, steps=6, attached=False):
    for k in range(steps):
        inputs, targets = data(seed=k)
        if attached:
            torch.nn.functional.cross_entropy(call(inputs), targets).backward()
        else:
            with optimizer.sampled_params(train=True):
                torch.nn.functional.cross_entropy(call(inputs), targets).backward()
        step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def eager(steps=6, **options):
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS, **options)
    return train(model, optimizer, model, optimizer.step, steps)


def assert_equal(found, expected):
    for p, q in zip(found, expected, strict=True):
        torch.testing.assert_close(p, q)


def test_compiled_model():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_equal(train(model, optimizer, compiled, optimizer.step), eager())


@pytest.mark.parametrize("to", ["compiled", "original"])
def test_compiled_attached_model(to):
    torch._dynamo.reset()  # code compiled without hooks is used again for modules with hooks, by torch's default
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer.attach(compiled if to == "compiled" else model)
    assert_equal(train(model, optimizer, compiled, optimizer.step, attached=True), eager())


def test_compiled_step_counts_and_moves_as_it_should():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    found = train(model, optimizer, model, torch.compile(optimizer.step, backend="aot_eager"), steps=12)
    assert_equal(found, eager(steps=12))
    assert optimizer.state[model[0].weight]["step"] == 12


def test_compiled_training_function():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)

    @torch.compile(backend="aot_eager")
    def step(inputs, targets):
        with optimizer.sampled_params(train=True):
            loss(model, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    for k in range(6):
        step(*data(seed=k))
    assert_equal([p.detach() for p in model.parameters()], eager())
