"""Samples in and out of place: the mean comes back bit for bit, whatever happens in between."""

import numpy as np
import pytest
import torch
from torch import nn

from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import IVON
from posterity.optim.kernels import _eager

pytestmark = pytest.mark.usefixtures("arithmetic")


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(model, before):
    return all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def make(model=None, **options):
    model = model or network()
    return model, IVON(model.parameters(), lr=0.1, ess=50, **options)


@pytest.mark.parametrize("train", [True, False])
def test_a_context_perturbs_every_weight_and_restores_it(train):
    model, optimizer = make()
    before = values(model)
    with optimizer.sampled_params(train=train):
        assert all((p != b).all() for p, b in zip(model.parameters(), before, strict=True))
    assert equal(model, before)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_restores_the_mean_and_drops_the_sample(error):
    model, optimizer = make()
    before = values(model)

    def interrupted():
        with optimizer.sampled_params(train=True):
            loss(model, *data()).backward()
            raise error

    with pytest.raises(error):
        interrupted()
    assert equal(model, before)
    with pytest.warns(UserWarning, match="at the mean"):
        optimizer.step()  # the gradients are still there, their noise is not
    optimizer.zero_grad()
    with optimizer.sampled_params(train=True):
        loss(model, *data()).backward()
    optimizer.step()


def test_an_exception_in_a_closure_restores_the_mean():
    model, optimizer = make()
    before = values(model)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert equal(model, before)


@pytest.mark.parametrize("fails_at", [0, 3])
def test_an_exception_while_noise_is_drawn_restores_the_mean(fails_at, monkeypatch):
    model = nn.ParameterList([torch.randn(300_000), torch.randn(10)])
    _, optimizer = make(model, fused=False)
    before = values(model)
    calls = iter(range(100))
    drawn = _eager.normal

    def failing(*args, **kwargs):
        if next(calls) == fails_at:
            raise MemoryError
        return drawn(*args, **kwargs)

    monkeypatch.setattr(_eager, "normal", failing)
    with pytest.raises(MemoryError), optimizer.sampled_params(train=True):
        pass
    assert equal(model, before)


def test_whole_numbers_of_numpy_are_whole_numbers():
    found = []
    for seed, count in ((3, 2), (np.int64(3), np.int32(2))):
        model, optimizer = make(seed=seed, mc_samples=count)

        def closure(model=model):
            value = loss(model, *data())
            value.backward()
            return value

        optimizer.step(closure)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*found)


def test_nested_contexts_are_refused_and_leave_the_mean():
    model, optimizer = make()
    before = values(model)
    with pytest.raises(InvalidInput, match="nested"), optimizer.sampled_params(), optimizer.sampled_params():
        pass
    assert equal(model, before)


def test_a_step_inside_a_context_is_refused_and_leaves_the_mean():
    model, optimizer = make()
    before = values(model)
    with pytest.raises(InvalidInput, match="closed"), optimizer.sampled_params(train=True):
        optimizer.step()
    assert equal(model, before)


def test_samples_pending_before_a_closure_with_several_samples_are_refused():
    model, optimizer = make(mc_samples=2)
    with optimizer.sampled_params(train=True):
        loss(model, *data()).backward()
    with pytest.raises(InvalidInput, match="pending"):
        optimizer.step(lambda: loss(model, *data()))


def test_prediction_samples_differ_are_not_learnt_from_and_do_not_disturb_training():
    model, optimizer = make()
    other, undisturbed = make()
    for k in range(3):
        for m, o in ((model, optimizer), (other, undisturbed)):
            with o.sampled_params(train=True):
                loss(m, *data(seed=k)).backward()
        seen = []
        for _ in range(2):
            with optimizer.sampled_params(), torch.inference_mode():
                seen.append(model(data()[0]))
        assert not torch.equal(*seen)
        optimizer.step()
        undisturbed.step()
        optimizer.zero_grad()
        undisturbed.zero_grad()
    assert equal(model, values(other))


def test_prediction_samples_are_draws_of_the_posterior():
    model, optimizer = make(betas=(0.9, 0.5))
    with optimizer.sampled_params(train=True):
        loss(model, *data()).backward()
    optimizer.step()
    posterior = optimizer.posterior(model, likelihood="categorical", n=32)
    for k in range(2):
        with optimizer.sampled_params():
            for name, p in model.named_parameters():
                torch.testing.assert_close(p.detach(), posterior.sample(k)[name].to(p.dtype))


def test_a_plain_step_takes_the_gradient_at_the_mean_and_says_so_once():
    model, optimizer = make(weight_decay=0.0, betas=(0.0, 0.9))
    reference = network()
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1)
    for k in range(3):
        for m in (model, reference):
            m.zero_grad()
            loss(m, *data(seed=k)).backward()
        if k == 0:
            with pytest.warns(UserWarning, match="Hessian is not updated"):
                optimizer.step()
        else:
            optimizer.step()  # a second warning would be an error here
        sgd.step()
    assert all((optimizer.state[p]["hessian"] == 1.0).all() for p in model.parameters())
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_frozen_unused_and_tied_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.tied = nn.Linear(4, 4, bias=False)
            self.tied.weight = self.used.weight
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.tied(self.used(self.frozen(x)))[:, :3]

    torch.manual_seed(0)
    model, optimizer = make(Net(), weight_decay=0.1)
    frozen, unused = values(model.frozen), values(model.unused)
    for k in range(5):
        with optimizer.sampled_params(train=True):
            assert equal(model.frozen, frozen)
            loss(model, *data(seed=k)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert equal(model.frozen, frozen)
    assert equal(model.unused, unused)
    assert set(optimizer.state) == {model.used.weight, model.used.bias}
    with pytest.warns(UserWarning, match="has been learnt"):
        posterior = optimizer.posterior(model, likelihood="categorical", n=32)
    assert posterior.names == ("used.weight", "used.bias", "unused.weight", "unused.bias")


def test_a_parameter_frozen_in_mid_training_stays_where_it_is():
    model, optimizer = make()
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            loss(model, *data()).backward()
        optimizer.step()
    model[0].requires_grad_(False)
    before = values(model[0])
    with optimizer.sampled_params(train=True):
        assert equal(model[0], before)
        loss(model, *data()).backward()
    optimizer.step()
    assert equal(model[0], before)


def test_batch_norm_statistics_are_left_alone_by_sampling():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    _, optimizer = make(model)
    with optimizer.sampled_params(train=True):
        loss(model, *data()).backward()
    optimizer.step()
    statistics = model[1].running_mean.clone()
    model.eval()
    with optimizer.sampled_params(), torch.no_grad():
        model(data()[0])
    assert torch.equal(model[1].running_mean, statistics)
