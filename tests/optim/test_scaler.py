"""Prices under a GradScaler, with gradients that are clipped to less than half of their size."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

import posterity as po
from networks import perceptron
from posterity.optim import IVON, Variational
from posterity.optim._meter import COLD

STEPS = COLD + 12
TWICE = 8  # steps after which the scaler doubles its factor


def over(base):
    return lambda parameters, **options: Variational(
        base(parameters, lr=1e-3), n=400, batch_size=40, total_steps=STEPS, **options
    )


def automatic(parameters, **options):
    return IVON(parameters, lr=0.1, ess="auto", hess_init="auto", n=400, **options)


def trained(make, clip, scaled, given=True, **options):
    """The optimizer, the sizes that clipping left of gradients, and the weights after some steps."""
    torch.manual_seed(0)
    x, y = torch.randn(400, 5), torch.arange(400) % 2
    model = perceptron(5, 20, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=TWICE, enabled=scaled)
    optimizer = make(model.parameters(), scaler=scaler if given else None, **options)
    left = []
    for step in range(STEPS):
        rows = slice(40 * (step % 10), 40 * (step % 10) + 40)
        with optimizer.sampled_params(train=True):
            scaler.scale(F.cross_entropy(model(x[rows]), y[rows])).backward()
        scaler.unscale_(optimizer)
        left.append(clip / float(clip_grad_norm_(model.parameters(), clip)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return optimizer, left, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("base", [AdamW, SGD])
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("clip", [0.05, 0.02])
def test_a_grad_scaler_changes_nothing_where_gradients_are_clipped(base, fused, clip):
    plain, left, weights = trained(over(base), clip, scaled=False, fused=fused)
    found, _, moved = trained(over(base), clip, scaled=True, fused=fused)
    assert max(left) < 0.5
    wanted = plain.state_dict()["meter"]
    assert found.state_dict()["meter"] == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    for p, q in zip(moved, weights, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clip", [0.05, 0.02])
def test_a_grad_scaler_changes_nothing_for_automatic_ivon(clip):
    plain, left, weights = trained(automatic, clip, scaled=False)
    found, _, moved = trained(automatic, clip, scaled=True)
    assert max(left) < 0.5
    assert found.state_dict()["price"] == pytest.approx(plain.state_dict()["price"], rel=1e-3)
    for p, q in zip(moved, weights, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [over(AdamW), automatic])
def test_a_grad_scaler_that_is_not_given_beside_clipping_warns(make):
    with pytest.warns(UserWarning, match="give the GradScaler as scaler="):
        trained(make, 0.1, scaled=True, given=False)


@pytest.mark.parametrize("make", [over(AdamW), automatic])
def test_a_grad_scaler_that_is_not_given_warns_of_nothing_without_clipping(make):
    trained(make, 1e3, scaled=True, given=False)


@pytest.mark.parametrize(("method", "options"), [("variational", {}), ("ivon", {"ess": "auto"})])
def test_fit_gives_its_grad_scaler_to_the_optimizer(method, options):
    """Otherwise it would warn: all gradients are clipped to less than half."""
    torch.manual_seed(0)
    data = torch.randn(200, 5), torch.arange(200) % 2
    po.fit(perceptron(5, 20, 2), data, method=method, epochs=6, batch_size=40, amp="fp16", clip=0.01, **options)
