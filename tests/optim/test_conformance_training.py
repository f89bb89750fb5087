"""What every optimizer must do while it trains."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from optim.conformance import Problem, all_optimizers, at_the_mean, real_optimizers
from posterity.errors import InvalidInput
from posterity.optim import Variational

pytestmark = at_the_mean

SCHEDULERS = {
    "none": [],
    "step": [lambda o: StepLR(o, gamma=0.9, step_size=10)],
    "plateau": [lambda o: ReduceLROnPlateau(o, threshold=1e-4)],
    "two": [lambda o: StepLR(o, gamma=0.99, step_size=10), lambda o: ReduceLROnPlateau(o)],
}


def train(problem, optimizer, steps=40, schedulers=()):
    schedulers = [make(optimizer) for make in schedulers]
    for _ in range(steps):
        optimizer.step(problem.closure(optimizer))
        for scheduler in schedulers:
            with torch.no_grad():
                scheduler.step(problem.loss()) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()


@real_optimizers
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("schedulers", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_goes_downhill(make, contiguous, schedulers):
    problem = Problem(contiguous)
    assert problem.weight.is_contiguous() == contiguous
    before = problem.loss().item()
    train(problem, make(problem.parameters), schedulers=schedulers)
    assert problem.loss().item() < 0.5 * before


@real_optimizers
def test_goes_downhill_by_groups_with_their_own_rates_under_a_scheduler(make):
    problem = Problem()
    before = problem.loss().item()
    optimizer = make([{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}])
    train(problem, optimizer, schedulers=[lambda o: CosineAnnealingLR(o, 60)])
    assert problem.loss().item() < 0.5 * before
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5 * optimizer.param_groups[1]["lr"])


@all_optimizers
def test_a_group_with_rate_zero_stays(make):
    problem = Problem()
    optimizer = make([{"params": [problem.weight], "lr": 0.0}, {"params": [problem.bias]}])
    weight, bias = problem.weight.detach().clone(), problem.bias.detach().clone()
    train(problem, optimizer, steps=3)
    assert torch.equal(problem.weight, weight)
    assert not torch.equal(problem.bias, bias)


@pytest.mark.filterwarnings("ignore:.* it is not decoupled")  # a strong prior, to see it
@real_optimizers
def test_weight_decay_of_a_group_shrinks_it(make):
    problem = Problem()
    optimizer = make(
        [{"params": [problem.weight], "weight_decay": 0.0}, {"params": [problem.bias], "weight_decay": 0.5}]
    )
    weight, bias = problem.weight.detach().clone(), problem.bias.detach().clone()
    for p in problem.parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(problem.weight, weight)
    assert problem.bias.norm() < bias.norm()


@all_optimizers
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_learning_rate_is_a_learning_rate(make, shape):
    one, other = Problem(), Problem()
    rate = torch.full(shape, 0.02)
    first, second = make(one.parameters, lr=0.02), make(other.parameters, lr=rate)
    train(one, first, steps=5)
    train(other, second, steps=5)
    torch.testing.assert_close(one.weight, other.weight)
    rate.mul_(0)
    before = other.weight.detach().clone()
    train(other, second, steps=1)
    assert torch.equal(other.weight, before)


@all_optimizers
def test_nothing_happens_without_gradients(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    before = copy.deepcopy([problem.parameters, optimizer.state_dict()["state"]])
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(problem.parameters, before[0], strict=True))
    assert not optimizer.state
    assert optimizer.step(lambda: torch.tensor(1.5)) == 1.5
    assert all(torch.equal(p, q) for p, q in zip(problem.parameters, before[0], strict=True))


@pytest.mark.filterwarnings("ignore:.* no parameter requires a gradient")
@all_optimizers
def test_nothing_happens_where_all_is_frozen(make):
    problem = Problem()
    optimizer = make([p.requires_grad_(False) for p in problem.parameters])
    before = [p.clone() for p in problem.parameters]
    optimizer.step()
    optimizer.step(problem.loss)
    assert all(torch.equal(p, q) for p, q in zip(problem.parameters, before, strict=True))


@real_optimizers
def test_zero_gradients_without_decay_leave_the_parameters(make):
    problem = Problem()
    optimizer = make(problem.parameters, weight_decay=0.0)
    before = [p.detach().clone() for p in problem.parameters]
    for _ in range(2):
        for p in problem.parameters:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(problem.parameters, before, strict=True))


@pytest.mark.filterwarnings("ignore:.* it is not decoupled")  # a strong prior, to see it
@all_optimizers
def test_gradients_are_read_and_never_written(make):
    problem = Problem()
    optimizer = make(problem.parameters, weight_decay=0.1)
    for sampled in (False, True, True):
        if sampled:
            with optimizer.sampled_params(train=True):
                problem.gradients()
        else:
            problem.gradients()
        gradients = [p.grad for p in problem.parameters]
        copies = [g.clone() for g in gradients]
        optimizer.step()
        for p, gradient, before in zip(problem.parameters, gradients, copies, strict=True):
            assert p.grad is gradient
            assert torch.equal(gradient, before)


@all_optimizers
def test_a_sample_to_predict_with_is_not_learnt_from(make):
    one, other = Problem(), Problem()
    optimizers = [make(problem.parameters) for problem in (one, other)]
    with optimizers[0].sampled_params():
        one.gradients()
    gradients = [p.grad for p in one.parameters]
    for p, gradient in zip(other.parameters, gradients, strict=True):
        p.grad = gradient.clone()
    for optimizer in optimizers:
        optimizer.step()
    for p, q in zip(one.parameters, other.parameters, strict=True):
        assert torch.equal(p, q)
        state, wanted = optimizers[0].state[p], optimizers[1].state[q]
        assert all(torch.equal(state[name], wanted[name]) for name in wanted)


@all_optimizers
def test_dtypes_side_by_side_train_as_they_do_alone(make):
    alone = Problem(dtype=torch.float64), Problem(seed=1)
    together = Problem(dtype=torch.float64), Problem(seed=1)
    optimizers = [make(problem.parameters) for problem in alone]
    optimizers.append(make([*together[0].parameters, *together[1].parameters]))
    for _ in range(5):
        for problem in (*alone, *together):
            problem.gradients()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)


@all_optimizers
def test_closures_run_with_gradients_on_and_their_loss_comes_back(make):
    problem = Problem()
    optimizer = make(problem.parameters, lr=0.0, ess=1e12)
    modes = []

    def closure():
        modes.append(torch.is_grad_enabled())
        return problem.closure(optimizer)()

    with torch.no_grad():
        value = optimizer.step(closure)
    assert all(modes)
    assert float(value) == pytest.approx(problem.loss().item(), rel=1e-3)


@all_optimizers
@pytest.mark.filterwarnings("ignore:.* a step was skipped")
def test_a_skipped_step_leaves_nothing_behind(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    for factor in (1.0, torch.nan, 1.0, 1.0):

        def closure(factor=factor):
            optimizer.zero_grad()
            (factor * problem.loss()).backward()

        optimizer.step(closure)
    assert optimizer.param_groups[0]["skipped"] == 1
    assert all(p.isfinite().all() for p in problem.parameters)
    assert all(t.isfinite().all() for state in optimizer.state.values() for t in state.values())


@all_optimizers
def test_one_autocast_around_all_steps_is_one_around_each_pass(make):
    found = []
    for around in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4, bias=False), torch.randn(5, 4)
        optimizer = make(layer.parameters())

        def closure(layer=layer, x=x, optimizer=optimizer):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = layer(x).float().pow(2).mean()
            loss.backward()
            return loss

        with around:
            losses = [optimizer.step(closure) for _ in range(3)]
            with optimizer.sampled_params():
                losses.append(closure())
            found.append(torch.stack([*losses, closure()]))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@all_optimizers
def test_hooks_run_before_and_after_a_step(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    calls = []

    def note(name):  # hooks of all optimizers hear of a base's step too
        return lambda o, args, kwargs: calls.append((name, True)) if o is optimizer else None

    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append(("before", o is optimizer)))
    after = optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append(("after", o is optimizer)))
    everywhere = [
        register_optimizer_step_pre_hook(note("all before")),
        register_optimizer_step_post_hook(note("all after")),
    ]
    problem.gradients()
    optimizer.step()
    assert [name for name, _ in calls] == ["all before", "before", "after", "all after"]
    assert all(right for _, right in calls)
    for handle in (before, after, *everywhere):
        handle.remove()
    optimizer.step()
    assert len(calls) == 4


@all_optimizers
def test_a_parameter_belongs_to_one_group(make):
    weight = nn.Parameter(torch.zeros(2))
    over_a_base = isinstance(make([nn.Parameter(torch.zeros(2))]), Variational)
    refused = pytest.raises(InvalidInput, match="each parameter once") if over_a_base else nullcontext()
    with pytest.warns(UserWarning, match="duplicate parameters"), refused:
        make([weight, weight])
    with pytest.raises(ValueError, match="more than one parameter group"):
        make([{"params": [weight]}, {"params": [weight]}])


@all_optimizers
def test_torchs_words_for_bad_arguments(make):
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        make([])
    with pytest.raises(TypeError, match="params argument given to the optimizer should be an iterable"):
        make(weight)
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        make([weight + 1])
    with pytest.raises(ValueError, match=r"Invalid learning rate: .*-0\.01"):
        make([weight], lr=-1e-2)
    with pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        make([weight], lr=torch.tensor([0.1, 0.2]))
    with pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        make(None, lr=torch.tensor([0.1, 0.2]))  # which torch looks at first


@real_optimizers
def test_torchs_words_for_bad_weight_decay(make):
    with pytest.raises(ValueError, match=r"Invalid weight_decay value: .*-1"):
        make([nn.Parameter(torch.zeros(2))], weight_decay=-1)
    with pytest.raises(ValueError, match="Invalid weight_decay value"):
        make(None, weight_decay=-1)  # which torch looks at first
