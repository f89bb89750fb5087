"""Noise times gradient, exactly: accumulation, several samples, and whatever users do to `.grad` before the step."""

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from optim.reference import Reference, array, data, loss, network
from posterity.optim import IVON

pytestmark = pytest.mark.usefixtures("arithmetic")

SETTINGS = {"lr": 0.2, "ess": 50, "hess_init": 0.5, "betas": (0.9, 0.9)}


class Watched:
    """A model under IVON that keeps what it saw: samples and the gradients that a backward pass added."""

    def __init__(self, **options):
        self.model, self.parts = network(), list(zip(*(t.split(8) for t in data()), strict=True))
        self.optimizer = IVON(self.model.parameters(), **SETTINGS, **options)
        self.parameters = list(self.model.parameters())
        self.references = [Reference(array(p), **SETTINGS) for p in self.parameters]
        self.seen = []

    def backward(self, part, scale=1.0, scaler=None):
        """Differentiate one micro-batch, and once more by hand for the record."""
        value = loss(self.model, *self.parts[part]) * scale
        gradients = torch.autograd.grad(value, self.parameters, retain_graph=True)
        self.seen.append([(array(p), array(g)) for p, g in zip(self.parameters, gradients, strict=True)])
        (value if scaler is None else scaler.scale(value)).backward()

    def check(self, factor=1.0, atol=2e-6):
        """Compare with the reference fed by gradients summed over what was seen, times a factor."""
        for i, (p, reference) in enumerate(zip(self.parameters, self.references, strict=True)):
            gradient = factor * sum(seen[i][1] for seen in self.seen)
            estimate = factor * sum(reference.estimate(*seen[i]) for seen in self.seen)
            reference.step(gradient, estimate)
            np.testing.assert_allclose(array(p), reference.mean, atol=atol)
            np.testing.assert_allclose(array(self.optimizer.state[p]["hessian"]), reference.hessian, rtol=1e-5)
        self.seen.clear()


def test_micro_batches_in_separate_contexts():
    watched = Watched()
    for _ in range(3):
        for part in range(4):
            with watched.optimizer.sampled_params(train=True):
                watched.backward(part, scale=0.25)
        assert len({seen[0][0][0, 0] for seen in watched.seen}) == 4, "each micro-batch has its own noise"
        watched.optimizer.step()
        watched.check()
        watched.optimizer.zero_grad()


@pytest.mark.parametrize("fused", [None, False])
def test_gradients_scaled_between_two_samples_count_as_scaled(fused):
    watched = Watched(fused=fused)
    for _ in range(3):
        for part in range(3):
            with watched.optimizer.sampled_params(train=True):
                watched.backward(part)
            if part == 1:  # two samples are in the sum, and a third will be
                for p in watched.parameters:
                    p.grad.mul_(0.5)
                watched.seen = [[(theta, 0.5 * g) for theta, g in seen] for seen in watched.seen]
        watched.optimizer.step()
        watched.check()
        watched.optimizer.zero_grad()


def test_micro_batches_of_an_attached_model():
    watched = Watched()
    watched.optimizer.attach(watched.model)
    for _ in range(3):
        for part in range(4):
            watched.backward(part, scale=0.25)
        assert len({seen[0][0][0, 0] for seen in watched.seen}) == 4
        watched.optimizer.step()
        watched.check()
        watched.optimizer.zero_grad()


@pytest.mark.parametrize("inside", ["optimizer", "model"])
def test_samples_separated_by_zero_grad_are_averaged(inside):
    watched = Watched()
    zero_grad = watched.optimizer.zero_grad if inside == "optimizer" else watched.model.zero_grad
    for _ in range(3):
        for part in range(4):
            with watched.optimizer.sampled_params(train=True):
                zero_grad()
                watched.backward(part)
        watched.optimizer.step()
        watched.check(factor=0.25)


def test_samples_and_micro_batches_together():
    """Two estimates to be averaged, each accumulated over two micro-batches."""
    watched = Watched()
    for _ in range(2):
        for part in range(4):
            with watched.optimizer.sampled_params(train=True):
                if part % 2 == 0:
                    watched.optimizer.zero_grad()
                watched.backward(part, scale=0.5)
        watched.optimizer.step()
        watched.check(factor=0.5)


@pytest.mark.parametrize("zero", [True, False], ids=["closure clears", "caller clears"])
def test_closure_with_several_samples(zero):
    watched = Watched(mc_samples=3)

    def closure():
        if zero:
            watched.optimizer.zero_grad()
        watched.backward(0)
        return torch.tensor(1.0)

    for _ in range(3):
        watched.optimizer.zero_grad()
        assert watched.optimizer.step(closure) == pytest.approx(1.0)
        assert len(watched.seen) == 3
        watched.check(factor=1 / 3)


def test_zero_grad_outside_a_context_discards():
    watched = Watched()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(0)
    watched.optimizer.zero_grad()
    watched.seen.clear()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(1)
    watched.optimizer.step()
    watched.check()


def test_a_gradient_from_before_the_sample_counts_as_one_at_the_mean():
    watched = Watched()
    watched.backward(0)
    with watched.optimizer.sampled_params(train=True):
        watched.backward(1)
    watched.optimizer.step()
    watched.check()


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_clipping_reaches_the_product(micro_batches):
    watched = Watched()
    for _ in range(3):
        for part in range(micro_batches):
            with watched.optimizer.sampled_params(train=True):
                watched.backward(part)
        before = clip_grad_norm_(watched.parameters, 1e-2)
        watched.optimizer.step()
        watched.check(factor=1e-2 / (before.item() + 1e-6))
        watched.optimizer.zero_grad()


def test_clipping_by_value_with_one_sample_is_exact():
    watched = Watched()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(0)
    clip_grad_value_(watched.parameters, 1e-3)
    clipped = [array(p.grad) for p in watched.parameters]
    watched.seen = [[(sample, g) for (sample, _), g in zip(watched.seen[0], clipped, strict=True)]]
    watched.optimizer.step()
    watched.check()


def test_clipping_each_sample_in_its_context():
    """The published GPT-2 recipe: one sample for each micro-batch, each clipped on its own, then averaged."""
    watched = Watched()
    for part in range(3):
        with watched.optimizer.sampled_params(train=True):
            watched.optimizer.zero_grad()
            watched.backward(part)
            factor = 1e-1 / (clip_grad_norm_(watched.parameters, 1e-1).item() + 1e-6)
        watched.seen[-1] = [(sample, g * factor) for sample, g in watched.seen[-1]]
    watched.optimizer.step()
    watched.check(factor=1 / 3)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("unscale", [True, False])
def test_grad_scaler(micro_batches, unscale):
    watched = Watched()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(3):
        for part in range(micro_batches):
            with watched.optimizer.sampled_params(train=True):
                watched.backward(part, scaler=scaler)
        if unscale:
            scaler.unscale_(watched.optimizer)
        scaler.step(watched.optimizer)
        scaler.update()
        watched.check()
        watched.optimizer.zero_grad()


@pytest.mark.parametrize("clear", ["outside", "inside", "by the model"])
def test_a_step_that_grad_scaler_skips_leaves_no_trace(clear):
    watched = Watched()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with watched.optimizer.sampled_params(train=True):
        watched.backward(0, scaler=scaler)
        watched.parameters[0].grad[0, 0] = torch.inf
    before = [array(p) for p in watched.parameters]
    scaler.step(watched.optimizer)
    scaler.update()
    assert all((array(p) == b).all() for p, b in zip(watched.parameters, before, strict=True))
    assert not watched.optimizer.state
    watched.seen.clear()
    if clear == "outside":
        watched.optimizer.zero_grad()
    if clear == "by the model":
        watched.model.zero_grad()
    with watched.optimizer.sampled_params(train=True):
        if clear == "inside":
            watched.optimizer.zero_grad()
        watched.backward(1, scaler=scaler)
    scaler.step(watched.optimizer)
    watched.check()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e25, -1e18])
def test_a_poisoned_step_is_skipped_counted_and_said(poison):
    watched = Watched()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(0)
    watched.optimizer.step()
    watched.check()
    watched.optimizer.zero_grad()
    before = watched.optimizer.state_dict()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(1)
    watched.parameters[1].grad[0] = poison
    with pytest.warns(UserWarning, match="skipped"):
        watched.optimizer.step()
    for index, state in watched.optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[name], before["state"][index][name]) for name in state)
    assert watched.optimizer.diagnostics().skipped == 1
    watched.optimizer.zero_grad()
    watched.seen.clear()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(2)
    watched.optimizer.step()
    watched.check()


@pytest.mark.parametrize("ess", [1.0, 1e5, 1e12])
def test_the_largest_gradients_that_are_learnt_from_leave_the_state_finite(ess):
    weight = torch.nn.Parameter(torch.zeros(5000))
    optimizer = IVON([weight], lr=1e-3, ess=ess, betas=(0.9, "auto"), total_steps=10)
    for size in (1.0, 0.01 * 2**61 / ess**0.5, 1.0, 1.0):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            (size * weight).sum().backward()
        optimizer.step()
    assert optimizer.diagnostics().skipped == 0
    assert all(t.isfinite().all() for t in (weight, *optimizer.state[weight].values()))


def test_poison_in_an_earlier_sample_is_not_absorbed():
    watched = Watched()
    with watched.optimizer.sampled_params(train=True):
        watched.backward(0)
        watched.parameters[0].grad[0, 0] = torch.nan
    with watched.optimizer.sampled_params(train=True):
        watched.backward(1)
    with pytest.warns(UserWarning, match="skipped"):
        watched.optimizer.step()
    assert all(torch.isfinite(p).all() for p in watched.parameters)
