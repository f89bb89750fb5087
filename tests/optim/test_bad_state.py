"""State dicts with a number that cannot be: each is refused, and changes nothing."""

import copy
import math

import pytest
import torch

from optim.conformance import CASES, Problem, at_the_mean
from posterity.errors import InvalidInput
from posterity.optim import IVON, Variational, VariationalNewton

HUGE = 10**5000  # which no float holds, and Python does not print


def numbers(state, path=()):
    """Paths to all numbers of a state dict, the keys of parameters aside."""
    if isinstance(state, (dict, list, tuple)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        for key, value in items:
            if key != "params":
                yield from numbers(value, (*path, key))
    elif isinstance(state, (int, float, torch.Tensor)) and not isinstance(state, bool):
        yield path


def changed(state, path, value):
    """A copy of a state dict with another number at a path; in tensors, in the first entry."""
    state = copy.deepcopy(state)
    *outer, last = path
    parts = [state]
    for key in outer:
        parts.append(parts[-1][key])
    if isinstance(parts[-1], tuple):  # betas
        parts[-2][outer[-1]] = tuple(value if i == last else old for i, old in enumerate(parts[-1]))
    elif isinstance(parts[-1][last], torch.Tensor) and value is not None:
        parts[-1][last].view(-1)[0] = value
    else:
        parts[-1][last] = value
    return state


def at(state, path):
    for key in path:
        state = state[key]
    return state


def trained(make, steps=3):
    problem = Problem()
    optimizer = make(problem.parameters)
    for _ in range(steps):
        optimizer.step(problem.closure(optimizer))
    return problem, optimizer


@at_the_mean
@pytest.mark.parametrize("name", [name for name in CASES if "," not in name or name.startswith("Variational")])
def test_no_number_of_a_state_dict_may_be_nan(name):
    problem, optimizer = trained(CASES[name])
    before = copy.deepcopy(optimizer.state_dict())
    found = list(numbers(before))
    assert len(found) > 4
    for path in found:
        with pytest.raises(InvalidInput):
            optimizer.load_state_dict(changed(before, path, math.nan))
    after = optimizer.state_dict()
    assert str(after) == str(before)
    optimizer.load_state_dict(before)
    optimizer.step(problem.closure(optimizer))


@pytest.mark.parametrize(
    ("make", "path", "value"),
    [
        ("IVON", ("state", 0, "hessian"), -1.0),
        ("IVON", ("state", 0, "step"), -1.0),
        ("IVON", ("state", 0, "forgetting"), -1.0),
        ("IVON", ("param_groups", 0, "ess"), -1),
        ("IVON", ("param_groups", 0, "ess"), HUGE),
        ("IVON", ("param_groups", 0, "lr"), math.inf),
        ("IVON", ("param_groups", 0, "draws"), -1),
        ("IVON", ("param_groups", 0, "draws"), 0.5),
        ("IVON", ("param_groups", 0, "skipped"), "many"),
        ("VariationalNewton", ("state", 0, "precision"), -1e6),
        ("Variational, AdamW", ("param_groups", 0, "lr"), -1.0),
        ("Variational, AdamW", ("param_groups", 0, "lr"), math.inf),
        ("Variational, AdamW", ("param_groups", 0, "lr"), "fast"),
        ("Variational, AdamW", ("param_groups", 0, "betas"), 0.9),
        ("Variational, AdamW", ("bases", 0, "state", 0, "exp_avg_sq"), -1.0),
        ("Variational, AdamW", ("bases", 0, "state", 0, "exp_avg"), math.inf),
        ("Variational, SGD", ("bases", 0, "state", 0, "momentum_buffer"), math.inf),
        ("Variational, AdamW", ("meter", "ess"), 0.0),
        ("Variational, AdamW", ("meter", "budget"), 0.0),
        ("Variational, AdamW", ("meter", "steps"), HUGE),
        ("Variational, AdamW", ("meter", "scale"), "text"),
        ("Variational, AdamW", ("meter", "pay"), 1.0),
        ("Variational, AdamW", ("deltas", 0), -1.0),
        ("Variational, AdamW", ("normalised", 0, 1), math.inf),
        ("Variational, AdamW", ("normalised", 0), [1.0]),
        ("Variational, AdamW", ("normalised",), math.nan),
        ("Variational, AdamW", ("normalised",), []),
        ("Variational, AdamW", ("deltas",), []),
        ("Variational, AdamW", ("meter",), None),
        ("Variational, AdamW", ("bases",), 1.0),
        ("Variational, AdamW", ("bases", 0), {}),
        ("Variational, AdamW", ("bases", 0, "state"), None),
        ("Variational, AdamW", ("bases", 0, "state", 0, "step"), -1.0),
        ("Variational, AdamW", ("bases", 0, "state", 0, "exp_avg"), None),
        ("Variational, AdamW", ("param_groups", 0, "betas"), []),
        ("Variational, AdamW", ("param_groups", 0, "betas"), (0.9, 1.0)),
        ("Variational, AdamW", ("param_groups", 0, "amsgrad"), math.nan),
        ("Variational, AdamW", ("param_groups", 0, "amsgrad"), None),
        ("IVON", ("param_groups", 0, "draws"), 1e308),
        ("IVON", ("param_groups", 0, "batch_size"), 10**400),
        ("IVON", ("param_groups", 0, "holds_price"), True),
        ("IVON", ("param_groups", 0, "params"), [0, 0]),
        ("IVON", ("param_groups", 0, "params"), None),
        ("IVON", ("param_groups",), {}),
        ("IVON", ("state",), None),
    ],
    ids=lambda value: "huge" if value is HUGE else str(value),
)
def test_numbers_out_of_their_range_are_refused(make, path, value):
    _, optimizer = trained(CASES[make])
    before = optimizer.state_dict()
    broken = copy.deepcopy(before) | ({"meter": before["meter"] | {"pay": 1.0}} if path[-1] == "pay" else {})
    with pytest.raises(InvalidInput):
        optimizer.load_state_dict(changed(broken, path, value))
    assert str(optimizer.state_dict()) == str(before)


@at_the_mean
@pytest.mark.parametrize("name", [name for name in CASES if "," not in name or name.endswith(("AdamW", "SGD"))])
@pytest.mark.parametrize(
    "bad",
    [
        lambda t: math.nan,
        lambda t: "text",
        lambda t: t.to_sparse(),
        lambda t: t.to("meta"),
        lambda t: t + 0j,
        lambda t: t[..., None],
        lambda t: torch.full(t.shape, 1e300, dtype=torch.float64),  # of which float32 makes infinity
    ],
    ids=["number", "text", "sparse", "meta", "complex", "one axis more", "double"],
)
def test_state_is_a_dense_tensor_of_its_shape(name, bad):
    problem, optimizer = trained(CASES[name])
    before = copy.deepcopy(optimizer.state_dict())
    tensors = [path for path in numbers(before) if path[0] != "param_groups" and path[-1] != "step"]
    tensors = [path for path in tensors if isinstance(found := at(before, path), torch.Tensor) and found.ndim]
    assert tensors
    for path in tensors:
        broken = copy.deepcopy(before)
        at(broken, path[:-1])[path[-1]] = bad(at(before, path))
        with pytest.raises(InvalidInput, match=f"state dict, '?{path[-1]}'?"):
            optimizer.load_state_dict(broken)
    assert str(optimizer.state_dict()) == str(before)
    optimizer.step(problem.closure(optimizer))


@at_the_mean
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bad", [None, [], {}, {"state": {}}, {"param_groups": []}, {"state": {0: 1.0}}])
def test_what_is_no_state_dict_is_refused(name, bad):
    problem, optimizer = trained(CASES[name])
    before = str(optimizer.state_dict())
    with pytest.raises(InvalidInput, match="state dict"):
        optimizer.load_state_dict({**optimizer.state_dict(), **bad} if bad and "state" in bad and bad["state"] else bad)
    assert str(optimizer.state_dict()) == before
    optimizer.step(problem.closure(optimizer))


def test_what_fails_in_a_base_changes_nothing():
    class Choosy(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)
            if state_dict["param_groups"][0]["lr"] > 1:
                raise RuntimeError("too fast")

    problem, optimizer = trained(lambda params: Variational(Choosy(params, lr=0.05), n=1000, total_steps=40))
    saved, before = copy.deepcopy(optimizer.state_dict()), str(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 2.0
    with pytest.raises(RuntimeError, match="too fast"):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == before
    assert optimizer.bases[0].param_groups[0]["lr"] == 0.05
    optimizer.step(problem.closure(optimizer))


def test_a_load_that_fails_at_its_end_changes_nothing():
    """As where a hook of the user raises, which runs when all has been loaded."""

    def refuse(_):
        raise RuntimeError("not today")

    problem, optimizer = trained(CASES["Variational, AdamW"], steps=25)
    saved, before = copy.deepcopy(optimizer.state_dict()), str(optimizer.state_dict())
    saved["meter"]["steps"], saved["deltas"] = 30, [2 * delta for delta in saved["deltas"]]
    hook = optimizer.register_load_state_dict_post_hook(refuse)
    with pytest.raises(RuntimeError, match="not today"):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == before
    hook.remove()
    optimizer.load_state_dict(saved)
    assert optimizer.meter.steps == 30
    optimizer.step(problem.closure(optimizer))


@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_what_torch_chooses_by_itself_may_be_loaded_where_it_was_chosen(name):
    """A default is None, which is neither True nor False."""
    _, usual = trained(CASES["Variational, AdamW"])
    parameter = torch.nn.Parameter(torch.ones(3))
    for value in (False, True):
        chosen = Variational(torch.optim.AdamW([parameter], **{name: value}), n=10)
        state = chosen.state_dict()
        state["param_groups"][0][name] = usual.param_groups[0][name]
        assert state["param_groups"][0][name] is None
        chosen.load_state_dict(state)


@pytest.mark.parametrize(
    ("mine", "other"), [("SAM", "IVON"), ("SAM", "EVON"), ("SAM", "BayesianSAM"), ("EVON", "IVON"), ("IVON", "EVON")]
)
def test_the_state_of_another_optimizer_is_refused(mine, other):
    """Also where it has all that the own one would have, and more."""
    _, optimizer = trained(CASES[mine])
    before = str(optimizer.state_dict())
    with pytest.raises(InvalidInput, match=f"state dict: expected one of {mine}, with"):
        optimizer.load_state_dict(trained(CASES[other])[1].state_dict())
    assert str(optimizer.state_dict()) == before


def test_a_sum_over_layers_is_not_taken_for_what_one_layer_would_gain():
    """States of before have no number of looks."""
    _, optimizer = trained(CASES["Variational, AdamW"], steps=25)
    state = copy.deepcopy(optimizer.state_dict())
    del state["meter"]["looks"]
    optimizer.load_state_dict(state | {"meter": state["meter"] | {"growing": 1.5}})
    assert float(optimizer.meter.growing) == float(optimizer.meter.looks) == 0


def test_rows_of_a_precision_may_not_be_missing():
    _, optimizer = trained(CASES["VariationalNewton"])
    broken = copy.deepcopy(optimizer.state_dict())
    del broken["state"][0]["precision"]
    with pytest.raises(InvalidInput, match="'precision' of a parameter"):
        optimizer.load_state_dict(broken)


@pytest.mark.parametrize("name", ["ess", "total", "scale", "clipping", "owed"])
def test_a_number_that_is_missing_is_named(name):
    _, optimizer = trained(CASES["Variational, AdamW"])
    broken = copy.deepcopy(optimizer.state_dict())
    del broken["meter"][name]
    with pytest.raises(InvalidInput, match="the numbers steps, measured"):
        optimizer.load_state_dict(broken)


def test_the_price_of_an_automatic_sample_size_is_checked_too():
    _, optimizer = trained(lambda params: IVON(params, lr=0.1, ess="auto", n=100))
    before = optimizer.state_dict()
    for name in before["price"]:
        with pytest.raises(InvalidInput, match=name):
            optimizer.load_state_dict(changed(before, ("price", name), math.nan))


def test_options_of_a_base_may_be_infinite_where_they_are():
    class Growing(torch.optim.SGD):
        """As some optimizers that find their learning rate."""

        def __init__(self, params):
            super().__init__(params, lr=0.05)
            self.param_groups[0] |= {"growth": math.inf, "lowest": -1.0}

    _, optimizer = trained(lambda params: Variational(Growing(params), n=1000, total_steps=40))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.param_groups[0]["growth"] == math.inf


def test_a_learning_rate_may_be_what_a_schedule_leaves_of_zero():
    problem, optimizer = trained(lambda params: Variational(torch.optim.Adam(params), n=1000, total_steps=40))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 0.0, total_iters=10)
    for _ in range(10):
        optimizer.step(problem.closure(optimizer))
        schedule.step()
    assert -1e-15 < optimizer.param_groups[0]["lr"] < 0
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.param_groups[0]["lr"] < 0


@at_the_mean
def test_the_precision_of_all_weights_comes_back():
    problem, optimizer = trained(lambda params: VariationalNewton(params, lr=0.05, ess=1000, rho=1e-4))
    again = VariationalNewton(problem.parameters, lr=0.05, ess=1000, rho=1e-4)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.testing.assert_close(again._matrix(), optimizer._matrix())
