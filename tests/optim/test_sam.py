"""SAM and bSAM: both passes where they belong, m-sharpness, mixed precision, and the published equations."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from optim.reference import array, data, loss, network
from posterity.errors import InvalidInput, Undefined
from posterity.optim import SAM, BayesianSAM
from posterity.posterior import Ensemble


def sharp(theta):
    """A loss with a different curvature along each axis, and its gradient."""
    return np.array([1.0, 10.0, 0.1]) * theta + 0.3 * theta**3


def value(weight):
    scale = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    return (0.5 * scale * weight**2 + 0.075 * weight**4).sum()


def start():
    return nn.Parameter(torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64))


def test_sam_trajectory():
    weight = start()
    optimizer = SAM([weight], lr=0.02, rho=0.3, momentum=0.8, weight_decay=0.05)
    mean, momentum = array(weight), np.zeros(3)
    for _ in range(20):
        optimizer.step(lambda: value(weight).backward())
        gradient = sharp(mean)
        uphill = sharp(mean + 0.3 * gradient / np.linalg.norm(gradient))
        momentum = 0.8 * momentum + uphill + 0.05 * mean
        mean = mean - 0.02 * momentum
        np.testing.assert_allclose(array(weight), mean, rtol=1e-10)


def test_sam_without_a_neighbourhood_is_sgd():
    one, other = network(), network()
    sam = SAM(one.parameters(), lr=0.1, rho=0.0, weight_decay=0.01)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(10):
        sam.step(lambda: loss(one, *data()).backward())
        sgd.zero_grad()
        loss(other, *data()).backward()
        sgd.step()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_bsam_trajectory():
    weight = start()
    options = {"lr": 0.05, "ess": 50, "rho": 0.1, "hess_init": 0.7, "weight_decay": 0.02, "damping": 0.1}
    optimizer = BayesianSAM([weight], betas=(0.8, 0.9), **options)
    mean, momentum, s = array(weight), np.zeros(3), np.full(3, 0.7)
    for _ in range(20):
        with optimizer.sampled_params(train=True):
            theta = array(weight)
            value(weight).backward()
        with optimizer.perturbed_params():
            gradient = sharp(theta)
            np.testing.assert_allclose(array(weight), mean + 0.1 * gradient / s, rtol=1e-10)
            value(weight).backward()
        np.testing.assert_allclose(array(weight), mean, rtol=1e-10)
        optimizer.step()
        optimizer.zero_grad()
        momentum = 0.8 * momentum + 0.2 * (sharp(mean + 0.1 * gradient / s) + 0.02 * mean)
        mean = mean - 0.05 * momentum / s
        s = 0.9 * s + 0.1 * (np.sqrt(s) * np.abs(gradient) + 0.1 + 0.02)
        np.testing.assert_allclose(array(weight), mean, rtol=1e-10)
        np.testing.assert_allclose(array(optimizer.state[weight]["scale"]), s, rtol=1e-10)


def test_the_noise_of_bsam_has_the_width_of_its_posterior():
    weight = nn.Parameter(torch.zeros(20000))
    optimizer = BayesianSAM([weight], lr=0.1, ess=100, hess_init=0.04)
    with optimizer.sampled_params(train=True):
        assert weight.std().item() == pytest.approx((100 * 0.04) ** -0.5, rel=0.02)


@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_parts_of_a_batch_are_averaged(kind):
    """m-sharpness: each part has its own neighbour, and the step takes the mean over parts."""
    options = {} if kind is SAM else {"ess": 1e12, "betas": (0.0, 0.9)}
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = kind([weight], lr=1.0, rho=0.1, weight_decay=0.0, **options)
    targets = [torch.tensor([0.0, 1.0]), torch.tensor([3.0, -1.0])]

    def closure(target):
        def evaluate():
            optimizer.zero_grad()
            part = ((weight - target) ** 4).sum()
            part.backward()
            return part

        return evaluate

    before, expected, sizes = array(weight), np.zeros(2), np.zeros(2)
    for target in (array(t) for t in targets):
        gradient = 4 * (before - target) ** 3
        length = np.linalg.norm(gradient) if kind is SAM else 1.0
        sizes += np.abs(gradient) / 2
        expected += 4 * (before + 0.1 * gradient / length - target) ** 3 / 2
    found = optimizer.step([closure(t) for t in targets])
    np.testing.assert_allclose(before - array(weight), expected, rtol=1e-4)
    assert float(found) == pytest.approx(sum(((before - array(t)) ** 4).sum() for t in targets) / 2, rel=1e-4)
    if kind is BayesianSAM:  # whose widths average the sizes of the gradients of all parts
        np.testing.assert_allclose(array(optimizer.state[weight]["scale"]), 0.9 + 0.1 * (sizes + 0.1), rtol=1e-4)


@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_a_grad_scaler_changes_nothing(kind):
    options = {"lr": 0.1} if kind is SAM else {"lr": 0.1, "ess": 100}
    runs = []
    for enabled in (False, True):
        model, (inputs, targets) = network(), data()
        optimizer = kind(model.parameters(), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
        for _ in range(5):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                scaler.scale(loss(model, inputs, targets)).backward()
            with optimizer.perturbed_params(scaler):
                scaler.scale(loss(model, inputs, targets)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        runs.append(model)
    for p, q in zip(*(model.parameters() for model in runs), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_an_infinite_first_pass_skips_the_step(kind):
    options = {"lr": 0.1} if kind is SAM else {"lr": 0.1, "ess": 100}
    model, (inputs, targets) = network(), data()
    optimizer = kind(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [p.detach().clone() for p in model.parameters()]
    for factor in (torch.inf, 1.0):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            scaler.scale(loss(model, inputs, targets) * factor).backward()
        with optimizer.perturbed_params(scaler):
            scaler.scale(loss(model, inputs, targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        same = [torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
        assert all(same) if factor == torch.inf else not any(same)
    assert scaler.get_scale() == 2.0
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_errors_leave_the_mean(kind):
    options = {"lr": 0.1} if kind is SAM else {"lr": 0.1, "ess": 100}
    model, (inputs, targets) = network(), data()
    optimizer = kind(model.parameters(), **options)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InvalidInput, match="first pass"), optimizer.perturbed_params():
        pass
    with optimizer.sampled_params(train=True):
        loss(model, inputs, targets).backward()
    with pytest.raises(RuntimeError, match="out of memory"), optimizer.perturbed_params():
        raise RuntimeError("out of memory")
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(InvalidInput, match="one backward pass"):
        optimizer.attach(model)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_gradients_with_a_graph_leave_none_behind(kind):
    model, (inputs, targets) = network(), data()
    optimizer = kind(model.parameters(), lr=0.1, **({} if kind is SAM else {"ess": 100}))
    for context in (partial(optimizer.sampled_params, train=True), optimizer.perturbed_params):
        with context():
            loss(model, inputs, targets).backward(create_graph=True)
    assert all(size.grad_fn is None for size in optimizer._sizes.values())
    optimizer.step()


def test_posteriors():
    model, (inputs, targets) = network(), data()
    sam = SAM(model.parameters(), lr=0.1, weight_decay=0.01)
    sam.step(lambda: loss(model, inputs, targets).backward())
    point = sam.posterior(model, likelihood="categorical", n=32)
    assert isinstance(point.structure, Ensemble)
    assert torch.equal(point.mean["0.weight"], model[0].weight)
    assert point.prior.precision["0.weight"].item() == pytest.approx(0.32)
    with pytest.raises(Undefined, match="point"):
        sam.diagnostics()
    bayes = BayesianSAM(model.parameters(), lr=0.1, ess=32, betas=(0.9, 0.5))
    for _ in range(3):
        bayes.step(lambda: loss(model, inputs, targets).backward())
    wide = bayes.posterior(model, likelihood="categorical", n=32)
    torch.testing.assert_close(wide.variance["2.bias"], 1 / (32 * bayes.state[model[2].bias]["scale"]))
    assert bayes.diagnostics().learnt == pytest.approx(1 - 0.5**3)
