"""State that survives: resuming, copying, loading, distributed checkpoints."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_state_dict

from networks import perceptron
from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import IVON

pytestmark = pytest.mark.usefixtures("arithmetic")

SETTINGS = {"lr": 0.2, "ess": 50, "betas": (0.9, 0.99), "hess_init": 0.5}


def cycle(model, optimizer, k):
    with optimizer.sampled_params(train=True):
        loss(model, *data(seed=k)).backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def saved(thing):
    """Through a file, as `weights_only` loading sees it."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_bit_exact_resume_at_every_step():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    checkpoints, path = [], []
    for k in range(50):
        checkpoints.append(saved((model.state_dict(), optimizer.state_dict())))
        cycle(model, optimizer, k)
        path.append([p.detach().clone() for p in model.parameters()])
    for k, (weights, state) in enumerate(checkpoints):
        resumed = network(seed=99)
        resumed.load_state_dict(weights)
        again = IVON(resumed.parameters(), lr=1.0, ess=1.0)
        again.load_state_dict(state)
        for step in range(k, min(k + 3, 50)):
            cycle(resumed, again, step)
            assert all(torch.equal(p, q) for p, q in zip(resumed.parameters(), path[step], strict=True)), k


@pytest.mark.parametrize("options", [{"betas": (0.9, "auto"), "total_steps": 40}, {"mc_samples": 2}, {"prior": True}])
def test_bit_exact_resume_with_options(options):
    def make(seed):
        model, extra = network(seed), dict(options)
        if options.get("prior"):
            with pytest.warns(UserWarning, match="has been learnt"):
                extra["prior"] = IVON(model.parameters(), lr=0.1, ess=3).posterior(model, likelihood="gaussian", n=3)
        return model, IVON(model.named_parameters(), **{**SETTINGS, **extra})

    def step(model, optimizer, k):
        def closure():
            optimizer.zero_grad()
            loss(model, *data(seed=k)).backward()

        optimizer.step(closure)

    model, optimizer = make(0)
    for k in range(15):
        step(model, optimizer, k)
    resumed, again = make(1)
    resumed.load_state_dict(saved(model.state_dict()))
    again.load_state_dict(saved(optimizer.state_dict()))
    for k in range(15, 30):
        step(model, optimizer, k)
        step(resumed, again, k)
    assert same(model, resumed)


def test_resume_after_a_skipped_step():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    with optimizer.sampled_params(train=True):
        (loss(model, *data()) * torch.nan).backward()
    with pytest.warns(UserWarning, match="skipped"):
        optimizer.step()
    optimizer.zero_grad()
    resumed = network()
    again = IVON(resumed.parameters(), **SETTINGS)
    again.load_state_dict(saved(optimizer.state_dict()))
    for m, o in ((model, optimizer), (resumed, again)):
        cycle(m, o, 0)
    assert same(model, resumed)
    assert again.diagnostics().skipped == 1


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_go_on_alike(copier):
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS, mc_samples=3)
    for k in range(3):
        cycle(model, optimizer, k)
    other, twin = copier((model, optimizer))
    assert twin.mc_samples == 3
    for k in range(3, 6):
        cycle(model, optimizer, k)
        cycle(other, twin, k)
    assert same(model, other)


def test_a_copy_made_inside_a_context_knows_its_mean():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    before = copy.deepcopy(model)
    with optimizer.sampled_params(train=True):
        other, twin = copy.deepcopy((model, optimizer))
        assert not same(model, before)
        assert same(other, before)
    twin.eval()
    assert same(other, before)


def test_a_group_added_later_trains_and_is_saved():
    model = network()
    optimizer = IVON(model[0].parameters(), **SETTINGS)
    with optimizer.sampled_params(train=True):
        loss(model, *data()).backward()
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01, "ess": 99})
    optimizer.step()
    optimizer.zero_grad()
    cycle(model, optimizer, 0)
    assert len(optimizer.state) == 4
    assert optimizer.state_dict()["param_groups"][1]["ess"] == 99
    copy.deepcopy(optimizer).load_state_dict(saved(optimizer.state_dict()))


def test_a_checkpoint_of_another_shape_is_refused_and_changes_nothing():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    cycle(model, optimizer, 0)
    torch.manual_seed(0)
    wider = perceptron(4, 8, 3)
    other = IVON(wider.parameters(), lr=0.7, ess=10)
    with pytest.raises(InvalidInput, match=r"expected shape \(8, 4\), got \(6, 4\)"):
        other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.7
    assert not other.state
    broken = optimizer.state_dict()
    broken["state"][0]["hessian"] = broken["state"][0]["hessian"] * torch.nan
    with pytest.raises(InvalidInput, match=r"'hessian' .* NaN"):
        optimizer.load_state_dict(broken)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_keep_float32_state(dtype):
    model = network().to(dtype)
    optimizer = IVON(model.parameters(), **SETTINGS | {"ess": 1e6})
    inputs, targets = data()
    for _ in range(5):
        with optimizer.sampled_params(train=True):
            loss(model, inputs.to(dtype), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    hessian = optimizer.state[model[0].weight]["hessian"]
    assert hessian.dtype == torch.float32
    assert len(hessian.unique()) > 12, "the Hessian of half-precision weights moves"
    twin = copy.deepcopy(model)
    again = IVON(twin.parameters(), lr=0.1, ess=1)
    again.load_state_dict(saved(optimizer.state_dict()))
    assert torch.equal(again.state[twin[0].weight]["hessian"], hessian)


def test_mixed_dtypes_train_side_by_side():
    model = network()
    model[2].double()
    optimizer = IVON(model.parameters(), **SETTINGS)
    inputs, targets = data()
    for _ in range(5):
        with optimizer.sampled_params(train=True):
            torch.nn.functional.cross_entropy(model[2](model[1](model[0](inputs)).double()), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.state[model[2].weight]["hessian"].dtype == torch.float64
    assert optimizer.state[model[0].weight]["hessian"].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_distributed_checkpoint_round_trip(tmp_path):
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    for k in range(3):
        cycle(model, optimizer, k)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(tmp_path), no_dist=True)
    resumed = network(seed=5)
    again = IVON(resumed.parameters(), **SETTINGS)
    weights, state = get_state_dict(resumed, again)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=str(tmp_path), no_dist=True)
    set_state_dict(resumed, again, model_state_dict=weights, optim_state_dict=state)
    for k in range(3, 6):
        cycle(model, optimizer, k)
        cycle(resumed, again, k)
    assert same(model, resumed)


def test_distributed_state_dict_has_named_entries():
    model = network()
    optimizer = IVON(model.parameters(), **SETTINGS)
    cycle(model, optimizer, 0)
    state = get_optimizer_state_dict(model, optimizer)
    assert set(state["state"]) == {name for name, _ in model.named_parameters()}
    assert {"step", "momentum", "hessian"} <= set(state["state"]["0.weight"])
