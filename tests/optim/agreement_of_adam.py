"""Kernels of `Variational` over Adam against plain tensor operations and torch's own steps."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam, AdamW

from optim.agreement import DEVICE, Net
from posterity.optim import Variational, _meter
from posterity.optim._meter import COLD
from posterity.optim.kernels import AdamKernels

STEPS = COLD + 5
HOWS = ("context", "until_step", "attached", "ahead")


@pytest.fixture(autouse=True)
def looks_come_often(monkeypatch):
    monkeypatch.setattr(_meter, "REFRESH", 2)


def noisy(model, k):
    """A loss whose gradients change with k, so that there is something to price."""
    return model(1) + sum(((w.float() * (1 + k % 3)).cos()).mean() for w in model.weights)


def over(fused, base=AdamW, dtype=torch.float32, groups=False, own=None, **settings):
    model = Net(dtype)
    first, *rest = model.parameters()
    params = [{"params": [first]}, {"params": rest, "lr": 3e-3, "betas": (0.8, 0.99)}] if groups else [first, *rest]
    given = {"n": 50, "batch_size": 4, "total_steps": 60, **(own or {})}
    return Variational(base(params, **{"lr": 1e-2, **settings}), fused=fused, **given), model


def train(
    optimizer,
    model,
    how="context",
    steps=STEPS,
    begin=0,
    clip=None,
    scale=1.0,
    spoil=None,
    parts=1,
    watched=None,
    copied=False,
):
    if watched is not None:  # at this budget
        optimizer.meter.watch()
        optimizer.meter.price.budget = watched
    attachment = optimizer.attach(model, ahead=how == "ahead") if how in ("attached", "ahead") else None
    for k in range(begin, begin + steps):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k / 10)
        for _ in range(parts):
            if attachment:
                (scale * noisy(model, k) / parts).backward()
            else:
                with optimizer.sampled_params(train=True, until_step=how == "until_step"):
                    (scale * noisy(model, k) / parts).backward()
        for p in model.parameters():
            p.grad.div_(scale)
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        if copied:  # which needs in memory what kernels would have drawn again
            copy.deepcopy(optimizer)
        if spoil is not None and k == COLD + 1:
            model.weights[0].grad[1, 1] = spoil
        optimizer.step()
        optimizer.zero_grad()
    if attachment:
        attachment.remove()


def used(optimizer):
    return isinstance(optimizer._fused._launcher, AdamKernels)


def assert_alike(one, other, rtol=1e-5, atol=1e-6):
    (fused, model), (plain, twin) = one, other
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)
        (base, _), (other_base, _) = fused.base_of(p), plain.base_of(q)
        assert base.state[p].keys() == other_base.state[q].keys()
        for name, t in base.state[p].items():
            torch.testing.assert_close(t.cpu(), other_base.state[q][name].cpu(), rtol=10 * rtol, atol=atol, msg=name)
        assert float(fused.state[p]["step"]) == float(plain.state[q]["step"])
    found, wanted = fused.state_dict(), plain.state_dict()
    assert found["meter"] == pytest.approx(wanted["meter"], rel=1e-4, abs=1e-6)
    assert found["deltas"] == pytest.approx(wanted["deltas"], rel=1e-4)


@pytest.mark.parametrize("how", HOWS)
def test_the_steps_of_tensor_operations(how):
    one, other = over(None), over(False)
    train(*one, how)
    train(*other)
    assert used(one[0])
    assert not used(other[0])
    assert_alike(one, other)


@pytest.mark.parametrize(
    ("settings", "training"),
    [
        ({"base": Adam, "weight_decay": 0.1}, {}),
        ({"weight_decay": 0.0, "own": {"prior": 2.0}}, {}),
        ({"groups": True, "own": {"seed": 3, "batch_size": None, "total_steps": None}}, {}),
        ({"eps": 0.05, "own": {"batch_size": None, "total_steps": None}}, {}),
        ({}, {"clip": 0.01, "how": "until_step"}),
        ({}, {"scale": 2.0**12}),
        ({"weight_decay": 0.0, "own": {"prior": 2.0}}, {"how": "until_step"}),
        ({"base": Adam, "weight_decay": 0.1}, {"how": "ahead"}),
        ({"lr": torch.tensor(1e-2)}, {}),
        ({}, {"watched": 0.003}),
        ({}, {"clip": 0.01, "copied": True}),
    ],
    ids=[
        "L2",
        "prior",
        "nothing_known",
        "a large eps",
        "clipped",
        "scaled",
        "prior, held",
        "L2, ahead",
        "a tensor for lr",
        "watched",
        "copied",
    ],
)
def test_all_that_a_step_depends_on(settings, training):
    one, other = over(None, **settings), over(False, **settings)
    train(*one, **training)
    train(*other, **{**training, "how": "context"})
    assert used(one[0])
    assert_alike(one, other)


def test_a_measured_price_that_squares_of_gradients_do_not_explain_is_believed():
    one, other = (over(fused, own={"n": 5000, "batch_size": 1}) for fused in (None, False))
    train(*one, steps=60)
    train(*other, steps=60)
    assert used(one[0])
    assert_alike(one, other, rtol=1e-4)
    assert float(other[0].meter.parameters) > 5 * float(other[0].meter.total)


def test_the_factor_of_a_grad_scaler_is_told_from_what_clipping_leaves():
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**12)
    one, other = over(None, own={"scaler": scaler}), over(False)
    train(*one, scale=2.0**12, clip=0.01)
    train(*other, clip=0.01)
    assert used(one[0])
    assert_alike(one, other)


@pytest.mark.parametrize("parts", [2])
def test_several_samples_a_step_are_drawn_by_kernels(parts):
    one, other = over(None), over(False)
    for optimizer, model in (one, other):
        train(optimizer, model, parts=parts)
        train(optimizer, model, begin=STEPS, steps=2)
    assert used(one[0])
    assert_alike(one, other)


@pytest.mark.parametrize(("how", "prior"), [("context", None), ("ahead", None), ("until_step", 2.0)])
def test_zeros_without_a_gradient_get_no_noise_but_that_of_a_given_prior(how, prior):
    pairs = []
    for fused in (None, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(40, 30, padding_idx=0), nn.Flatten(0), nn.Linear(120, 1)).to(DEVICE)
        base = AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        optimizer = Variational(base, fused=fused, n=50, batch_size=4, total_steps=60, prior=prior)
        attachment = optimizer.attach(model, ahead=True) if how == "ahead" else None
        for k in range(STEPS):
            tokens = torch.tensor([0, k % 7 + 1, k % 11 + 1, 0], device=DEVICE)
            drawn = optimizer.sampled_params(True, until_step=how == "until_step")
            with contextlib.nullcontext() if attachment else drawn:
                (model(tokens) - 1).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if attachment:
            attachment.remove()
        with optimizer.sampled_params():
            sample = model[0].weight.detach().clone()
        noise = sample - model[0].weight.detach()
        width = float(noise[0].std() / noise[30:].std())  # beside that of tokens which never came
        assert width > 0.5 if prior else width < 0.01
        pairs.append((optimizer, model))
    assert used(pairs[0][0])
    assert_alike(*pairs)


def test_gradients_that_were_there_before_a_sample_are_not_priced_with_its_noise():
    one, other = over(None), over(False)
    for optimizer, model in (one, other):
        train(optimizer, model, steps=COLD + 1)
        noisy(model, 0).backward()
        with optimizer.sampled_params(train=True):
            noisy(model, 1).backward()
        optimizer.step()
    assert used(one[0])
    assert_alike(one, other)
    assert float(one[0].meter.price.last) != 0


def test_closures_that_clear_gradients_in_the_context_are_left_to_kernels():
    one, other = over(None), over(False)
    for optimizer, model in (one, other):

        def closure(optimizer=optimizer, model=model):
            optimizer.zero_grad()
            value = noisy(model, 1)
            value.backward()
            return value

        for _ in range(STEPS):
            optimizer.step(closure)
    assert one[0]._fused._before == {}
    assert used(one[0])
    assert_alike(one, other)


def test_a_copy_goes_on_alike():
    optimizer, model = over(None)
    train(optimizer, model)
    twin_model, twin = copy.deepcopy((model, optimizer))
    for pair in ((optimizer, model), (twin, twin_model)):
        train(*pair, steps=2, begin=STEPS)
    assert used(twin)
    assert_alike((twin, twin_model), (optimizer, model), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.* a step was skipped")
@pytest.mark.parametrize("how", ["context", "until_step", "ahead"])
@pytest.mark.parametrize("spoil", [torch.nan, 2.0**64])
def test_a_step_that_cannot_be_taken_changes_nothing_but_a_count(how, spoil):
    one, other = over(None), over(False)
    train(*one, how, spoil=spoil)
    train(*other, spoil=spoil)
    assert used(one[0])
    assert one[0].diagnostics().skipped == 1
    assert_alike(one, other)


def test_parameters_without_a_gradient_stay_and_count_no_step():
    one, other = over(None), over(False)
    for optimizer, model in (one, other):
        train(optimizer, model, steps=COLD)
        for k in range(3):
            with optimizer.sampled_params(train=True):
                noisy(model, k).backward()
                model.weights[1].grad = None
            optimizer.step()
            optimizer.zero_grad()
    assert used(one[0])
    assert float(one[0].bases[0].state[one[1].weights[1]]["step"]) == COLD
    assert_alike(one, other)


@pytest.mark.parametrize("how", ["context", "ahead"])
def test_a_resumed_run_goes_on_to_the_bit(how):
    one, again = over(None), over(None)
    train(*one, how)
    again[1].load_state_dict(copy.deepcopy(one[1].state_dict()))
    again[0].load_state_dict(copy.deepcopy(one[0].state_dict()))
    for pair in (one, again):
        train(*pair, how, steps=3, begin=STEPS)
    assert used(again[0])
    assert_alike(again, one, rtol=0, atol=0)
    assert again[0].state_dict()["meter"] == one[0].state_dict()["meter"]


def test_the_mean_comes_back_bit_for_bit():
    optimizer, model = over(None)
    train(optimizer, model, steps=COLD + 1)
    before = copy.deepcopy(model.state_dict())
    with optimizer.sampled_params(train=True):
        assert not torch.equal(model.weights[0], before["weights.0"])
        noisy(model, 0).backward()
    assert used(optimizer)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("settings", [{"amsgrad": True}, {"maximize": True}, {"foreach": True}], ids=str)
def test_other_ways_of_adam_are_left_to_torch(settings):
    optimizer, model = over(None, **settings)
    train(optimizer, model, steps=COLD + 1)
    assert not used(optimizer)


def test_a_base_with_hooks_is_stepped_by_torch():
    one, other = over(None), over(False)
    calls = []
    one[0].bases[0].register_step_post_hook(lambda *_: calls.append(1))
    train(*one)
    train(*other)
    assert len(calls) == STEPS
    assert_alike(one, other, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.* a step was skipped")
def test_where_torch_takes_over_it_knows_of_skipped_steps():
    """Kernels count on the device, and the host only guesses; from the hook on, tensor operations need the count."""
    one, other = over(None), over(False)
    for pair in (one, other):
        train(*pair, spoil=torch.nan)
    assert used(one[0])
    for pair in (one, other):
        pair[0].bases[0].register_step_post_hook(lambda *_: None)
        train(*pair, begin=STEPS, steps=3)
    assert_alike(one, other)


def test_a_scheduler_of_the_base_sees_its_steps():
    optimizer, model = over(None)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer.bases[0], 1.0, 0.5, 2 * STEPS)
    for k in range(STEPS):
        with optimizer.sampled_params(train=True):
            noisy(model, k).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()  # warns where no step came before it
    assert used(optimizer)


def test_half_precisions_are_left_to_tensor_operations():
    optimizer, model = over(None, dtype=torch.bfloat16)
    train(optimizer, model, steps=COLD + 1)
    assert not used(optimizer)


def test_the_price_is_that_of_the_gradients_and_the_noise():
    optimizer, model = over(None)
    train(optimizer, model, steps=COLD + 1)
    mean = [p.detach().clone() for p in model.parameters()]
    with optimizer.sampled_params(train=True):
        sample = [p.detach().clone() for p in model.parameters()]
        noisy(model, 0).backward()
    parts = [((s - m) * p.grad).double().sum() for s, m, p in zip(sample, mean, model.parameters(), strict=True)]
    optimizer.step()
    assert used(optimizer)
    assert float(optimizer.meter.price.last) == pytest.approx(0.5 * float(sum(parts)), rel=1e-5)


def test_where_tensors_are_replaced_kernels_follow():
    one, other = over(None), over(False)
    for optimizer, model in (one, other):
        train(optimizer, model, steps=COLD + 1)
        for p in model.parameters():
            p.data = p.data.clone()
            state = optimizer.bases[0].state[p]
            state["exp_avg_sq"] = state["exp_avg_sq"].clone()
        train(optimizer, model, begin=COLD + 1, steps=2)
    assert used(one[0])
    assert_alike(one, other)
