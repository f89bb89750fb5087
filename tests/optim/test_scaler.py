"""`Variational` under a GradScaler, with gradients that are clipped to less than half of their size."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

from networks import perceptron
from posterity.optim import Variational
from posterity.optim._meter import COLD

STEPS = COLD + 12
TWICE = 8  # steps after which the scaler doubles its factor


def trained(base, clip, scaled, given=True, **options):
    """The optimizer, the sizes that clipping left of gradients, and the weights after some steps."""
    torch.manual_seed(0)
    x, y = torch.randn(400, 5), torch.arange(400) % 2
    model = perceptron(5, 20, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=TWICE, enabled=scaled)
    base = base(model.parameters(), lr=1e-3)
    optimizer = Variational(base, n=400, batch_size=40, total_steps=STEPS, scaler=scaler if given else None, **options)
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
    plain, left, weights = trained(base, clip, scaled=False, fused=fused)
    found, _, moved = trained(base, clip, scaled=True, fused=fused)
    assert max(left) < 0.5
    wanted = plain.state_dict()["meter"]
    assert found.state_dict()["meter"] == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    for p, q in zip(moved, weights, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_a_grad_scaler_that_is_not_given_beside_clipping_warns():
    with pytest.warns(UserWarning, match="give the GradScaler as scaler="):
        trained(AdamW, 0.1, scaled=True, given=False)


def test_a_grad_scaler_that_is_not_given_warns_of_nothing_without_clipping():
    trained(AdamW, 1e3, scaled=True, given=False)
