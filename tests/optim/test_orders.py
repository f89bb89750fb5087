"""Unusual orders of calls: whatever comes between samples and step, kernels do as plain tensor operations."""

import copy

import pytest
import torch

from optim.agreement import Net, assert_equal, pair, train
from posterity.errors import InvalidInput
from posterity.optim import EVON, IVON


def draw(optimizer, model, k=1, **options):
    with optimizer.sampled_params(train=True, **options):
        model(k).backward()


def test_a_sample_to_predict_from_does_not_stay_until_the_step():
    one, other = pair()
    for optimizer, model in (one, other):
        draw(optimizer, model)
        before = copy.deepcopy(model.state_dict())
        with optimizer.sampled_params(until_step=True):
            assert not torch.equal(model.weights[0], before["weights.0"])
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
        optimizer.step()
    assert_equal(one, other)


def test_products_have_no_graph():
    """The gradients of the first step are there when the sample of the second comes: they are taken out again."""
    one, other = pair()
    for optimizer, model in (one, other):
        draw(optimizer, model)
        optimizer.step()
        draw(optimizer, model, 2)
        assert not any(kept.product.requires_grad for kept in optimizer._samples.statistics.kept.values())
        optimizer.step()
    assert_equal(one, other)


@pytest.mark.parametrize("way", ["context", "until_step"])
def test_gradients_older_than_their_sample_are_scaled_with_the_others(way):
    one, other = pair()
    for optimizer, model in (one, other):
        draw(optimizer, model)
        optimizer.step()
        draw(optimizer, model, 2, until_step=way == "until_step")
        for p in model.parameters():
            p.grad.mul_(0.25)
        optimizer.step()
    assert_equal(one, other)


def reordered(model):
    for p in list(model.parameters())[2:]:
        gradient, p.grad = p.grad, None
        p.data = p.detach().contiguous()
        p.grad = gradient.contiguous()


@pytest.mark.parametrize("change", [reordered, torch.nn.Module.float], ids=["order", "type"])
def test_sums_follow_a_model_that_is_converted_between_samples(change):
    dtype = torch.float32 if change is reordered else torch.float64
    one, other = pair(dtype=dtype)
    for optimizer, model in (one, other):
        draw(optimizer, model, 0)
        draw(optimizer, model, 1)
        change(model)
        draw(optimizer, model, 2)
        optimizer.step()
    assert one[0]._fused._launcher is not None
    assert_equal(one, other)


def test_a_parameter_that_joins_between_samples_has_had_no_noise(monkeypatch):
    one, other = pair()
    monkeypatch.setattr(torch, "empty_like", lambda p, **options: torch.full_like(p, torch.nan, **options))
    for optimizer, model in (one, other):
        late = model.weights[0].requires_grad_(False)
        draw(optimizer, model)
        late.requires_grad_(True).grad = torch.ones_like(late)
        draw(optimizer, model, 2)
        optimizer.step()
        assert optimizer.diagnostics().skipped == 0
    assert_equal(one, other)


def test_sparse_gradients_older_than_their_sample_are_refused():
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = IVON(table.parameters(), lr=0.1, ess=10.0)
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidInput, match="dense"), optimizer.sampled_params(train=True):
        pass
    assert torch.equal(table.weight, before)


def test_closures_with_several_samples_refuse_one_that_waits_for_its_step():
    (optimizer, model), _ = pair(mc_samples=2)
    draw(optimizer, model, until_step=True)
    with pytest.raises(InvalidInput, match="no samples pending"):
        optimizer.step(lambda: model(1).backward())


def test_an_attached_model_draws_another_sample_than_one_that_waits_for_its_step():
    one, other = pair()
    for optimizer, model in (one, other):
        draw(optimizer, model, until_step=True)
        with optimizer.attach(model):
            model(2).backward()
        optimizer.step()
    assert int(one[0].param_groups[0]["draws"]) == 2
    assert_equal(one, other)


@pytest.mark.parametrize("spoilt", [0, 1])
def test_a_nan_in_one_of_two_samples_leaves_every_bit(spoilt):
    (optimizer, model), _ = pair()
    train(optimizer, model, steps=1)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    for k in range(2):
        draw(optimizer, model)
        if k == spoilt:
            model.weights[0].grad[1, 1] = torch.nan
    with pytest.warns(UserWarning, match="a step was skipped"):
        optimizer.step()
    assert all(torch.equal(t, before[0][name]) for name, t in model.state_dict().items())
    for found, expected in zip(optimizer.state_dict()["state"].values(), before[1].values(), strict=True):
        assert all(torch.equal(found[name], t) for name, t in expected.items())


@pytest.mark.parametrize("make", [IVON, EVON])
def test_state_follows_a_model_that_becomes_wider(make):
    def trained(*dtypes):
        model = Net(dtypes[0])
        optimizer = make(model.parameters(), lr=0.01, ess=100.0)
        for dtype in dtypes:
            model.to(dtype)

            def closure():
                optimizer.zero_grad()
                value = model(1)
                value.backward()
                return value

            optimizer.step(closure)
        return model

    found, expected = trained(torch.float32, torch.float64), trained(torch.float64, torch.float64)
    for p, q in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)
