"""What every optimizer must keep, save and load."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from optim.conformance import Problem, all_optimizers, at_the_mean

pytestmark = at_the_mean


def train(problem, optimizer, steps=3):
    for _ in range(steps):
        optimizer.step(problem.closure(optimizer))


def flat(state_dict):
    """Every leaf of a state dict, with its path."""

    def walk(value, path):
        if isinstance(value, dict):
            for key in value:
                yield from walk(value[key], (*path, key))
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                yield from walk(item, (*path, index))
        else:
            yield path, value

    return dict(walk(state_dict, ()))


def assert_same(one, other):
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, other[path], rtol=0, atol=0, msg=str(path))
        else:
            assert value == other[path], path


@all_optimizers
def test_state_is_kept_for_each_parameter(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    assert set(optimizer.state) == set(problem.parameters)
    for p in problem.parameters:
        assert isinstance(optimizer.state[p]["step"], torch.Tensor)
        assert optimizer.state[p]["step"].device.type == "cpu"
        assert all(isinstance(value, torch.Tensor) for value in optimizer.state[p].values())


@all_optimizers
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_loaded_optimizer_goes_on_exactly(make, contiguous):
    one, other = Problem(contiguous), Problem(contiguous)
    first, second = make(one.parameters), make(other.parameters, lr=0.9)
    schedulers = [StepLR(o, step_size=2, gamma=0.5) for o in (first, second)]
    train(one, first)
    for p, q in zip(one.parameters, other.parameters, strict=True):
        q.data.copy_(p.data)
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(first.state_dict())
    schedulers[1].load_state_dict(schedulers[0].state_dict())
    for _ in range(4):
        for problem, optimizer, scheduler in zip((one, other), (first, second), schedulers, strict=True):
            train(problem, optimizer, steps=1)
            scheduler.step()
        assert all(torch.equal(p, q) for p, q in zip(one.parameters, other.parameters, strict=True))
    assert_same(first.state_dict(), second.state_dict())
    second.load_state_dict(state)
    assert_same(state, second.state_dict())


@all_optimizers
def test_files_load_with_weights_only(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = make(problem.parameters)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert_same(optimizer.state_dict(), loaded.state_dict())


@all_optimizers
def test_a_step_saved_as_a_number_loads(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for values in state["state"].values():
        values["step"] = values["step"].item()
    optimizer.load_state_dict(state)
    train(problem, optimizer)
    assert all(optimizer.state[p]["step"] == 6 for p in problem.parameters)


@all_optimizers
def test_an_older_state_dict_takes_defaults_for_what_it_lacks(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    for name in list(optimizer.defaults):
        if name in ("lr", "differentiable"):
            continue
        state = copy.deepcopy(optimizer.state_dict())
        del state["param_groups"][0][name]
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0][name] == optimizer.defaults[name]
        train(problem, optimizer, steps=1)


@all_optimizers
@pytest.mark.parametrize("from_named", [True, False])
@pytest.mark.parametrize("to_named", [True, False])
def test_named_and_unnamed_parameters_load_into_each_other(make, from_named, to_named):
    problem = Problem()
    source = make(problem.named if from_named else problem.parameters)
    train(problem, source)
    target = make(problem.named if to_named else problem.parameters)
    target.load_state_dict(source.state_dict())
    for p in problem.parameters:
        assert_same(source.state[p], target.state[p])
    assert ("param_names" in target.param_groups[0]) == (from_named or to_named)


@all_optimizers
def test_hooks_around_state_dicts(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    calls, rates = [], []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before save"))

    def after_save(_, state_dict):
        calls.append("after save")
        return {**state_dict, "extra": 1}

    def before_load(_, state_dict):
        calls.append("before load")
        assert state_dict.pop("extra") == 1
        for group in state_dict["param_groups"]:
            group["lr"] = 0.123

    optimizer.register_state_dict_post_hook(after_save)
    optimizer.register_load_state_dict_pre_hook(before_load)
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("second after load"))
    optimizer.register_load_state_dict_post_hook(lambda o: rates.append(o.param_groups[0]["lr"]))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("first after load"), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda o: o.state.update({"a note": True}))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before save", "after save", "before load", "first after load", "second after load"]
    assert rates == [optimizer.param_groups[0]["lr"]] == [0.123]  # hooks after the loading see what was loaded
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == 1


@all_optimizers
def test_a_pre_hook_may_replace_the_state_dict(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    good = copy.deepcopy(optimizer.state_dict())
    optimizer.register_load_state_dict_pre_hook(lambda _, __: copy.deepcopy(good))
    optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert_same(optimizer.state_dict(), good)


@all_optimizers
def test_copies_have_all_public_attributes(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    train(problem, optimizer)
    twin = copy.deepcopy(optimizer)
    public = {name for name in vars(optimizer) if not name.startswith("_")}
    assert public == {name for name in vars(twin) if not name.startswith("_")}
    assert_same(optimizer.state_dict(), twin.state_dict())


@all_optimizers
def test_it_prints_its_groups(make):
    problem = Problem()
    text = repr(make([{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.777}]))
    assert "Parameter Group 1" in text
    assert "lr: 0.777" in text


@all_optimizers
def test_a_different_number_of_parameters_is_refused(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(make([{"params": [p]} for p in problem.parameters]).state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(make([problem.weight]).state_dict())


@all_optimizers
def test_loading_state_of_other_precision_takes_the_parameters_own(make):
    single, double = Problem(), Problem(dtype=torch.float64)
    source = make(single.parameters)
    train(single, source)
    target = make(double.parameters)
    target.load_state_dict(source.state_dict())
    assert all(t.dtype == torch.float64 for name, t in target.state[double.weight].items() if name != "step")
    train(double, target)


@all_optimizers
@pytest.mark.filterwarnings("ignore:.* has been learnt")
def test_empty_parameters_and_numbers_are_saved_and_handed_over(make):
    model = nn.ParameterDict({"empty": torch.zeros(0, 5), "number": torch.tensor(1.0), "vector": torch.ones(3)})

    def closure():
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in model.values())
        loss.backward()
        return loss

    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.step(closure)
    make(copy.deepcopy(model).parameters()).load_state_dict(optimizer.state_dict())
    mean = optimizer.posterior(model, likelihood="gaussian", n=10).mean
    assert mean["empty"].shape == (0, 5)
    torch.testing.assert_close(mean["number"], model["number"].data)


@all_optimizers
@pytest.mark.parametrize("other", [torch.optim.AdamW, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)])
def test_the_state_of_another_optimizer_is_refused_and_changes_nothing(make, other):
    problem = Problem()
    other, optimizer = other(problem.parameters), make(problem.parameters)
    problem.gradients()
    other.step()
    with pytest.raises(ValueError, match=f"expected one of {type(optimizer).__name__}, .*, got .*(exp_avg|buffer)"):
        optimizer.load_state_dict(other.state_dict())
    assert not optimizer.state
    train(problem, optimizer)
