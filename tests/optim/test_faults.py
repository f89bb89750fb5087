"""What users do to optimizers by mistake or bad luck: each is survived or said."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from networks import perceptron
from posterity.errors import InvalidInput
from posterity.optim import IVON, SAM, SOBA, BayesianSAM, Vadam, VariationalNewton

INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return perceptron(3, 4, 1)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(model, other):
    return all(map(torch.equal, model.parameters(), other))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            model(INPUTS).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Fails(torch.autograd.Function):
    """The identity, which cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no derivative")


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fails = network(), True

    def forward(self, x):
        hidden = self.body[1](self.body[0](x))
        return self.body[2](Fails.apply(hidden) if self.fails else hidden)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("then", ["zero_grad", "evaluation", "state_dict", "training"])
def test_an_exception_in_backward_leaves_the_mean(fused, then):
    model = Failing()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=fused)
    optimizer.attach(model)
    mean = weights(model)
    loss = model(INPUTS).sum()
    with pytest.raises(RuntimeError, match="no derivative"):
        loss.backward()
    if then == "zero_grad":
        optimizer.zero_grad()
    elif then == "evaluation":
        with torch.no_grad():
            model(INPUTS)
    elif then == "state_dict":
        model.state_dict()
    else:
        model.fails = False
        optimizer.zero_grad()
        model(INPUTS).sum().backward()
    assert same(model, mean)


@pytest.mark.parametrize("noise", ["shared", "per_rank"])
def test_an_abandoned_sample_leaves_nothing_to_the_next_one(noise):
    failed, other = network(), network()
    optimizers = [IVON(model.parameters(), lr=0.1, ess=50, fused=False, noise=noise) for model in (failed, other)]
    with pytest.raises(ZeroDivisionError), optimizers[0].sampled_params(train=True):
        raise ZeroDivisionError
    with optimizers[1].sampled_params(train=True):
        other(INPUTS).square().mean().backward()
    optimizers[1].zero_grad()  # thinks better of it
    for model, optimizer in zip((failed, other), optimizers, strict=True):
        train(model, optimizer)
    assert same(failed, weights(other))
    for p, q in zip(failed.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizers[0].state[p]["hessian"], optimizers[1].state[q]["hessian"])


def test_a_gradient_penalty_keeps_the_sample():
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=False)
    mean = weights(model)
    with optimizer.attach(model):
        x = INPUTS.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        sample = weights(model)
        penalty = slope.square().sum()
        loss = model(INPUTS).square().mean() + penalty
        assert same(model, sample)
        loss.backward()
        optimizer.zero_grad()
    assert same(model, mean)


@pytest.mark.parametrize("kind", [SAM, BayesianSAM])
def test_one_pass_of_a_two_pass_optimizer_is_said(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=0.1, **({} if kind is SAM else {"ess": 50}))
    mean = weights(model)
    with optimizer.sampled_params(train=True):
        model(INPUTS).square().mean().backward()
    with pytest.warns(UserWarning, match="a first pass without a second.*perturbed_params"):
        optimizer.step()
    assert same(model, mean)


@pytest.mark.parametrize(
    ("where", "name", "value", "message"),
    [
        ("param_groups", "lr", math.nan, "Invalid learning rate"),
        ("param_groups", "ess", -1.0, "ess: expected a positive finite number"),
        ("param_groups", "betas", (0.9, 1.5), "Invalid beta parameter at index 1"),
        ("state", "hessian", -2.0, "posterior precision of a parameter: expected positive numbers"),
        ("state", "step", -1.0, "'step' of a parameter"),
    ],
)
def test_state_dicts_are_checked(where, name, value, message):
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50)
    train(model, optimizer)
    good = copy.deepcopy(optimizer.state_dict())
    bad = copy.deepcopy(good)
    entry = bad[where][0]
    entry[name] = torch.full_like(entry[name], value) if where == "state" else value
    with pytest.raises(InvalidInput, match=message):
        optimizer.load_state_dict(bad)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state_dict()["param_groups"] == good["param_groups"]
    torch.testing.assert_close(optimizer.state_dict()["state"], good["state"], rtol=0, atol=0)


def test_parameters_that_share_memory_are_refused():
    memory = torch.zeros(10)
    with pytest.raises(InvalidInput, match="do not share memory"):
        IVON([nn.Parameter(memory[:6]), nn.Parameter(memory[4:])], lr=0.1, ess=50)
    grid = torch.zeros(4, 4)
    IVON([nn.Parameter(grid[:, 0]), nn.Parameter(grid[:, 1:])], lr=0.1, ess=50)  # beside each other
    with pytest.raises(InvalidInput, match="do not share memory"):
        IVON([nn.Parameter(grid[:, :2]), nn.Parameter(grid[:, 1:])], lr=0.1, ess=50)
    optimizer = IVON([nn.Parameter(memory[:6])], lr=0.1, ess=50)
    with pytest.raises(InvalidInput, match="do not share memory"):
        optimizer.add_param_group({"params": [nn.Parameter(memory[5:])]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("fused", [None, False])
def test_weights_that_are_loaded_in_a_context_are_lost_with_a_warning(fused):
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=fused)
    mean, other = weights(model), {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    with pytest.warns(UserWarning, match="written to while a sample was in place"), optimizer.sampled_params():
        model.load_state_dict(other)
    assert same(model, mean)
    model.load_state_dict(other)
    assert same(model, list(other.values()))


def test_weights_that_are_loaded_between_steps_that_sample_ahead_stay():
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50)
    other = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    with optimizer.attach(model, ahead=True):
        model(INPUTS).square().mean().backward()
        optimizer.step()
        model.load_state_dict(other)
    assert same(model, list(other.values()))


@pytest.mark.parametrize("fused", [None, False])
def test_a_copy_in_the_middle_of_a_context_is_at_the_mean_and_goes_on(fused):
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=fused)
    train(model, optimizer, steps=2)
    mean, saved = weights(model), None
    with optimizer.sampled_params(train=True):
        twin, twin_optimizer = copy.deepcopy((model, optimizer))
        saved = copy.deepcopy(optimizer.state_dict())
        model(INPUTS).square().mean().backward()
    assert same(twin, mean)
    other = network()
    with torch.no_grad():
        for p, m in zip(other.parameters(), mean, strict=True):
            p.copy_(m)
    loaded = IVON(other.parameters(), lr=0.1, ess=50, fused=fused)
    loaded.load_state_dict(saved)
    for one in ((twin, twin_optimizer), (other, loaded)):
        train(*one, steps=2)
    assert same(twin, weights(other))


@pytest.mark.parametrize("where", ["a sample that stays until the step", "a context whose sample was taken away"])
def test_a_copy_between_two_states_is_at_the_mean_and_trains(where):
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50)
    mean = weights(model)
    if where.startswith("a sample"):
        with optimizer.sampled_params(train=True, until_step=True):
            model(INPUTS).square().mean().backward()
        assert not same(model, mean)  # it is in place
        twin, copied = copy.deepcopy((model, optimizer))
    else:
        with optimizer.sampled_params(train=True):
            optimizer._put_mean()
            twin, copied = copy.deepcopy((model, optimizer))
    assert same(twin, mean)
    train(twin, copied)
    assert not same(twin, mean)


@pytest.mark.parametrize("fused", [None, False])
def test_a_step_without_gradients_puts_the_mean_back(fused):
    model = network()
    optimizer = IVON(model.parameters(), lr=0.1, ess=50, fused=fused)
    train(model, optimizer)
    mean = weights(model)
    with optimizer.sampled_params(train=True, until_step=True):
        model(INPUTS)
    optimizer.step()
    assert same(model, mean)


def test_frozen_parameters_alone_are_accepted_and_said_at_the_first_step():
    model = network().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = IVON(model.parameters(), lr=0.1, ess=50)
        with optimizer.sampled_params():
            model(INPUTS)
    mean = weights(model)
    with pytest.warns(UserWarning, match="no parameter requires a gradient"):
        optimizer.step()
    assert same(model, mean)
    model.requires_grad_(True)
    train(model, optimizer)
    assert not same(model, mean)


@pytest.mark.parametrize("kind", [IVON, SOBA, Vadam])
def test_arguments_of_torch(kind):
    def make(**options):
        return kind(network().parameters(), lr=0.1, ess=50, **options)

    make(foreach=True, maximize=False, differentiable=False, capturable=kind is IVON)
    for name in ("maximize", "differentiable"):
        with pytest.raises(InvalidInput, match=f"{name}: expected False for {kind.__name__}, got True; "):
            make(**{name: True})
    with pytest.raises(InvalidInput, match="foreach: expected True or False"):
        make(foreach=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'amsgrad'"):
        make(amsgrad=True)
    if kind is not IVON:
        with pytest.raises(InvalidInput, match=r"capturable: expected False.*counters live on the host"):
            make(capturable=True)
        with pytest.raises(InvalidInput, match=r"fused: expected False.*no kernels"):
            make(fused=True)


@pytest.mark.parametrize("kind", [SOBA, VariationalNewton])
def test_one_cycle_with_its_defaults(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=0.01, ess=50)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=6)
    assert optimizer.param_groups[0]["momentum"] == 0.95
    for _ in range(5):
        train(model, optimizer)
        scheduler.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert "momentum" in optimizer.state[next(model.parameters())]
    twin = network()
    other = kind(twin.parameters(), lr=0.01, ess=50)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["momentum"] == optimizer.param_groups[0]["momentum"]


def test_momentum_of_soba_averages_gradients():
    weight = nn.Parameter(torch.zeros(3))
    optimizer = SOBA([weight], lr=0.1, ess=1e8, momentum=0.5, weight_decay=0.0, rho=1e-10)
    mean, average = torch.zeros(3), None
    for target in (1.0, -2.0, 3.0):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            (0.5 * (weight - target).square()).sum().backward()
        gradient = mean - target
        average = gradient if average is None else 0.5 * average + 0.5 * gradient
        mean = mean - 0.1 * average
        optimizer.step()
    torch.testing.assert_close(weight.detach(), mean, rtol=1e-3, atol=1e-3)


def test_state_dicts_with_the_old_name_of_momentum_load():
    model = network()
    optimizer = VariationalNewton(model.parameters(), lr=0.1, ess=50)
    train(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["beta1"] = 0.7
    del saved["param_groups"][0]["momentum"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["momentum"] == 0.7
    assert "beta1" not in optimizer.param_groups[0]
