"""The phases of a sample, and what is measured of every sample where an optimizer asks for it."""

import pytest
import torch
from torch import nn

from networks import perceptron
from posterity.optim import IVON, SOBA
from posterity.optim.engine import Phase


def make(kind=IVON, **options):
    torch.manual_seed(0)
    model = perceptron(3, 4, 1)
    return model, kind(model.parameters(), lr=0.1, ess=50, **options)


def backward(model, seed=0):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()


@pytest.mark.parametrize("options", [{"fused": False}, {}])
def test_phases_of_contexts(options):
    model, optimizer = make(**options)
    phases = [optimizer._samples.phase]
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            phases.append(optimizer._samples.phase)
            backward(model)
        phases.append(optimizer._samples.phase)
    with optimizer.sampled_params():
        phases.append(optimizer._samples.phase)
    phases.append(optimizer._samples.phase)
    optimizer.step()
    phases.append(optimizer._samples.phase)
    one = [Phase.SAMPLED, Phase.PENDING]
    assert phases == [Phase.MEAN, *one, *one, *one, Phase.MEAN]


def test_phases_of_an_attached_model():
    model, optimizer = make(fused=False)
    with optimizer.attach(model):
        loss = model(torch.ones(2, 3)).sum()
        assert optimizer._samples.phase is Phase.SAMPLED
        loss.backward(retain_graph=True)
        assert optimizer._samples.phase is Phase.DIFFERENTIATED
        loss.backward()
        assert optimizer._samples.phase is Phase.PENDING
        optimizer.zero_grad()
        assert optimizer._samples.phase is Phase.MEAN


def test_a_sample_does_not_follow_a_sample():
    _, optimizer = make(fused=False)
    with optimizer.sampled_params(), pytest.raises(AssertionError, match="does not follow"):
        optimizer._samples.place({})


@pytest.mark.parametrize("zero", [False, True])
def test_totals_are_those_of_each_sample_and_its_own_gradient(zero):
    model, optimizer = make(SOBA)
    statistics = optimizer._samples.statistics
    statistics.watched = True
    expected = []
    for seed in range(3):
        mean = [p.detach().clone() for p in model.parameters()]
        with optimizer.sampled_params(train=True):
            before = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
            if zero:
                optimizer.zero_grad()
                before = [torch.zeros_like(p) for p in before]
            backward(model, seed)
            parts = zip(model.parameters(), mean, before, strict=True)
            expected.append(sum(((p.detach() - m) * (p.grad - b)).sum() for p, m, b in parts))
    torch.testing.assert_close(torch.stack(statistics.totals), torch.stack(expected), rtol=1e-4, atol=1e-7)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    norms = [p.grad.norm() / kept.norm for p, kept in statistics.kept.items()]
    assert all(abs(n - norms[0]) < 1e-4 * norms[0] for n in norms), "clipping is one factor"
    optimizer.step()
    assert statistics.totals == []
