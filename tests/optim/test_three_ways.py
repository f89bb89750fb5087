"""The three ways to use a variational optimizer take the same steps."""

import pytest
import torch
import torch.nn.functional as F

from networks import perceptron
from posterity.optim import IVON

pytestmark = pytest.mark.usefixtures("arithmetic")


def problem():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 5, generator=generator)
    return inputs, (inputs[:, 0] > 0.3 * inputs[:, 1]).long()


def train(way, steps=20):
    inputs, targets = problem()
    torch.manual_seed(1)
    model = perceptron(5, 8, 2)
    optimizer = IVON(model.parameters(), lr=0.3, ess=200, betas=(0.9, 0.999), hess_init=0.5)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(model(batch), labels)
        value.backward()
        return value

    if way == "attach":
        optimizer.attach(model)
    for k in range(steps):
        batch, labels = inputs[k * 10 : k * 10 + 10], targets[k * 10 : k * 10 + 10]
        if way == "context":
            with optimizer.sampled_params(train=True):
                loss()
            optimizer.step()
        elif way == "closure":
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("way", ["closure", "attach"])
def test_equal_to_the_context(way):
    one, _ = train("context")
    other, _ = train(way)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
