"""The network that questions compute with: at the posterior mean, and the caller's model is left as it is."""

import pytest
import torch
from torch import nn

from posterior import cases
from posterity.errors import InvalidInput
from posterity.posterior.private import private
from posterity.trees import snapshot


@pytest.mark.parametrize("replaced", [False, True])
def test_a_network_at_the_mean_and_the_model_as_it_was(replaced: bool) -> None:
    posterior, model = cases.posterior(), cases.network(9).train()
    if replaced:  # no double can be made of it
        model.forward = model.forward
    before = snapshot(dict(model.state_dict()))
    with private(model, posterior) as network:
        assert (network is model) == replaced
        assert not network.training
        for name, t in {**posterior.mean, **posterior.buffers}.items():
            assert torch.equal(network.state_dict()[name], t)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_what_a_network_writes_into_its_buffers_is_its_own() -> None:
    posterior, model = cases.posterior(), cases.network()
    kept = snapshot(posterior.buffers)
    with private(model, posterior) as network:
        for t in network.buffers():
            t.fill_(7)
    assert all(torch.equal(t, kept[name]) for name, t in posterior.buffers.items())
    assert all(torch.equal(t, kept[name]) for name, t in model.named_buffers())


def test_the_posterior_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidInput), private(nn.Linear(3, 2), cases.posterior()):
        pass
