"""Kernels against plain tensor operations: what every launcher is asked, whatever the kernels are made of."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from posterity.noise import Key, normal
from posterity.optim import IVON
from posterity.posterior import Diagonal

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = {"lr": 0.1, "ess": 100.0, "betas": (0.9, 0.9), "hess_init": 0.5}


class Net(nn.Module):
    """A loss that knows all its weights: of two blocks of noise and more, of one number, and of other layouts."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        weights = [torch.randn(2, 600), torch.randn(1), torch.randn(4, 6).T, torch.randn(2, 3, 2, 2)]
        weights[3] = weights[3].to(memory_format=torch.channels_last)
        self.weights = nn.ParameterList(w.to(DEVICE, dtype) for w in weights)

    def forward(self, k):
        return sum(((w.float() - k / 3) ** 2).mean() + w.float().sin().sum() / 50 for w in self.weights)


def train(optimizer, model, how="context", steps=2, spoil=None):
    attachment = optimizer.attach(model, ahead=how == "ahead") if how in ("attached", "ahead") else None
    for k in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        for _ in range(2 if how == "several" else 1):
            if attachment:
                model(k).backward()
            else:
                with optimizer.sampled_params(train=True, until_step=how == "until_step"):
                    model(k).backward()
        if how == "several":
            clip_grad_norm_(model.parameters(), 0.5)
        if spoil is not None and k == 1:
            model.weights[0].grad[1, 1] = spoil
        optimizer.step()
        optimizer.zero_grad()
    if attachment:
        attachment.remove()


def pair(make=IVON, dtype=torch.float32, **options):
    """The same model twice: under the kernels, and under tensor operations."""
    models = [Net(dtype), Net(dtype)]
    fused, plain = (
        make(m.named_parameters(), **{**SETTINGS, **options, "fused": f})
        for m, f in zip(models, (None, False), strict=True)
    )
    return (fused, models[0]), (plain, models[1])


def assert_equal(one, other, rtol=2e-5, atol=2e-6):
    (fused, model), (plain, twin) = one, other
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)
        assert fused.state[p].keys() == plain.state[q].keys()
        for name, t in fused.state[p].items():
            torch.testing.assert_close(t.cpu(), plain.state[q][name].cpu(), rtol=10 * rtol, atol=atol, msg=name)


def test_normals_within_a_few_units_in_the_last_place():
    weight = nn.Parameter(torch.zeros(3000, device=DEVICE))
    optimizer = IVON([weight], lr=0.1, ess=1.0, hess_init=1.0, weight_decay=0.0)
    with optimizer.sampled_params(train=True):
        torch.testing.assert_close(weight.detach().cpu(), normal(Key(0, 1), 3000), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["context", "until_step", "attached", "ahead"])
def test_equal_to_tensor_operations(how):
    one, other = pair(clip_radius=2.0)
    train(*one, how)
    train(*other)
    assert one[0]._fused._launcher is not None
    assert_equal(one, other)


def with_prior(params, **options):
    params = list(params)
    torch.manual_seed(1)
    trees = [{name: torch.rand_like(p) for name, p in params} for _ in range(4)]
    optimizer = IVON(params, prior=Diagonal(trees[0], {n: 10 * t for n, t in trees[1].items()}), **options)
    optimizer.set_term(linear=trees[2], quadratic=trees[3])
    return optimizer


def with_groups(params, **options):
    first, *rest = (p for _, p in params)
    return IVON([{"params": [first], "weight_decay": 0.1, "seed": 5}, {"params": rest, "ess": 50.0}], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"make": with_prior},
        {"make": with_groups},
        {"betas": (0.9, "auto"), "total_steps": 8},
        {"hess_approx": "gradsq", "batch_size": 4, "debias": False, "rescale_lr": False},
    ],
    ids=["prior and term", "groups", "auto", "gradsq"],
)
@pytest.mark.parametrize("how", ["until_step", "several"])
def test_all_equations(how, options):
    one, other = pair(**options)
    train(*one, how)
    train(*other, how)
    assert_equal(one, other)


def test_without_a_first_beta_the_momentum_is_the_gradient_bit_for_bit():
    (optimizer, model), _ = pair(betas=(0.0, 0.9))
    for scale in (1e4, 1e-3):  # so that the rounding of the old gradient would drown the new one
        with optimizer.sampled_params(train=True):
            (scale * model(1)).backward()
        optimizer.step()
        gradients = [p.grad for p in model.parameters()]
        optimizer.zero_grad()
    assert optimizer._fused._launcher is not None
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(optimizer.state[p]["momentum"], gradient)


@pytest.mark.parametrize("how", ["context", "several"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions(dtype, how):
    one, other = pair(dtype=dtype)
    train(*one, how)
    train(*other, how)
    assert one[0].state[one[1].weights[0]]["hessian"].dtype == torch.float32
    unit = torch.finfo(dtype).eps
    assert_equal(one, other, rtol=2 * unit, atol=2 * unit)


@pytest.mark.parametrize("noise", ["shared", "per_rank"])
def test_the_mean_comes_back_bit_for_bit(noise):
    (optimizer, model), _ = pair(noise=noise)
    before = copy.deepcopy(model.state_dict())
    for k in range(3):
        with optimizer.sampled_params(train=True):
            assert not torch.equal(model.weights[0], before["weights.0"])
            model(k).backward()
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_the_mean_comes_back_bit_for_bit_to_a_model_that_has_become_wider():
    (optimizer, model), _ = pair()
    with optimizer.sampled_params(train=True):
        pass
    model.double()
    with torch.no_grad():
        model.weights[0].div_(3)
    before = copy.deepcopy(model.state_dict())
    with optimizer.sampled_params(train=True):
        pass
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("how", "spoil", "dtype"),
    [
        ("context", torch.nan, torch.float32),
        ("until_step", torch.nan, torch.float32),
        ("ahead", torch.nan, torch.float32),
        ("until_step", torch.nan, torch.float16),
        ("ahead", torch.nan, torch.bfloat16),
        ("context", 2.0**64, torch.float32),  # whose square is infinite
        ("context", -(2.0**64), torch.bfloat16),
    ],
)
def test_a_step_with_gradients_that_cannot_be_used_is_skipped_counted_and_reported(how, spoil, dtype):
    one, other = pair(dtype=dtype)
    with pytest.warns(UserWarning, match="a step was skipped"):
        train(*one, how, steps=3, spoil=spoil)
    with pytest.warns(UserWarning, match="a step was skipped"):
        train(*other, steps=3, spoil=spoil)
    assert one[0].diagnostics().skipped == 1
    unit = torch.finfo(dtype).eps
    assert_equal(one, other, **({} if dtype is torch.float32 else {"rtol": 2 * unit, "atol": 2 * unit}))


@pytest.mark.filterwarnings("ignore:.* a step was skipped")
def test_a_step_after_one_that_tensor_operations_skipped_is_in_the_state():
    one, other = pair()
    for optimizer, model in (one, other):
        for k in range(2):  # which tensor operations find not to be finite
            with optimizer.sampled_params(train=True):
                (torch.nan * model(k)).backward()
        optimizer.step()
        optimizer.zero_grad()
        train(optimizer, model, steps=1)
    assert_equal(one, other)


def closure_of(optimizer, model, clear):
    def closure():
        if clear:
            optimizer.zero_grad()
        value = model(1)
        value.backward()
        return value

    return closure


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("samples", [1, 2])
def test_closures(clear, samples):
    one, other = pair(mc_samples=samples)
    for optimizer, model in (one, other):
        for _ in range(2):
            optimizer.step(closure_of(optimizer, model, clear))
    assert_equal(one, other)


@pytest.mark.parametrize("how", ["context", "until_step", "attached", "ahead"])
def test_gradients_that_are_cleared_before_the_step_take_their_sample_along(how):
    one, other = pair()
    for (optimizer, model), fast in ((one, True), (other, False)):
        train(optimizer, model, steps=1)
        if fast and how in ("attached", "ahead"):
            handle = optimizer.attach(model, ahead=how == "ahead")
            model(1).backward()
        else:
            with optimizer.sampled_params(train=True, until_step=fast and how == "until_step"):
                model(1).backward()
        optimizer.zero_grad(set_to_none=False)
        assert not optimizer._samples.means
        with pytest.warns(UserWarning, match="gradients at the mean"):
            optimizer.step()
    if how in ("attached", "ahead"):
        handle.remove()
    assert_equal(one, other)


@pytest.mark.parametrize("ahead", [False, True])
def test_gradients_may_be_cleared_between_forward_and_backward_pass(ahead):
    one, other = pair()
    optimizer, model = one
    with optimizer.attach(model, ahead=ahead):
        for k in range(2):
            optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
            value = model(k)
            optimizer.zero_grad(set_to_none=bool(k))
            value.backward()
            optimizer.step()
    optimizer.zero_grad()
    train(*other)
    assert_equal(one, other)


def test_accumulation():
    one, other = pair()
    for optimizer, model in (one, other):
        for k in range(2):
            with optimizer.sampled_params(train=True):
                model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
        train(optimizer, model, steps=1)
    assert_equal(one, other)


def test_who_looks_at_a_model_that_is_ahead_sees_the_mean():
    one, other = pair()
    train(*other, steps=2)
    (optimizer, model), (_, plain) = one, other
    optimizer.attach(model, ahead=True)
    for k in range(2):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        model(k).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer._samples.means, "the next sample is in place"
        if k == 0:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(model(7), plain(7))
    assert_equal(one, other)
    again = Net()
    resumed = IVON(again.named_parameters(), lr=1.0, ess=1.0)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert saved[1]["param_groups"][0]["draws"] == 1
    resumed.attach(again, ahead=True)
    resumed.param_groups[0]["lr"] = 0.05
    again(1).backward()
    resumed.step()
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in again.state_dict().items())


def test_a_copy_between_sample_and_step_takes_the_same_step():
    (optimizer, model), _ = pair()
    with optimizer.sampled_params(train=True):
        model(1).backward()
    other, twin = copy.deepcopy((optimizer, model))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        q.grad = p.grad.clone()
    optimizer.step()
    other.step()
    assert_equal((other, twin), (optimizer, model))


def test_a_group_without_parameters():
    (_, model), other = pair()
    optimizer = IVON([{"params": []}, {"params": list(model.parameters())}], **SETTINGS)
    train(optimizer, model, steps=1)
    train(*other, steps=1)
    assert optimizer._fused._launcher is not None
    assert_equal((optimizer, model), other)


def move(model):
    for p in model.parameters():
        p.data = p.detach().clone()


@pytest.mark.parametrize("how", ["context", "until_step", "ahead"])
def test_the_mean_comes_back_to_parameters_that_have_moved_under_a_sample(how):
    one, other = pair()
    for optimizer, model in (one, other):
        with optimizer.sampled_params(train=True, until_step=how == "until_step"):
            model(1).backward()
            move(model)
        optimizer.step()
        optimizer.zero_grad()
        train(optimizer, model, how, steps=1)
        attachment = optimizer.attach(model, ahead=how == "ahead")
        model(2).backward()
        optimizer.step()
        move(model)
        attachment.remove()
    assert_equal(one, other)


def test_a_prior_that_comes_between_sample_and_step_counts():
    one, other = pair()
    for optimizer, model in (one, other):
        with optimizer.sampled_params(train=True):
            model(1).backward()
        means = {name: torch.ones_like(p) for name, p in model.named_parameters()}
        optimizer.set_prior(Diagonal(means, means))
        optimizer.step()
        optimizer.zero_grad()
        train(optimizer, model, steps=1)
    assert_equal(one, other)


@pytest.mark.parametrize("how", ["context", "until_step", "several"])
def test_the_sample_of_a_step_is_the_one_drawn_before_widths_changed(how):
    one, other = pair()
    for optimizer, model in (one, other):
        for _ in range(2):
            for k in range(2 if how == "several" else 1):
                with optimizer.sampled_params(train=True, until_step=how == "until_step"):
                    model(k).backward()
            optimizer.param_groups[0]["ess"] *= 4
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(one, other)


def test_the_state_of_a_model_that_was_float64_is_narrowed():
    narrow, wide = pair()[0], pair(dtype=torch.float64)[0]
    train(*wide, steps=1)
    wide[1].float()
    train(*wide, steps=1)
    for _ in range(2):
        train(*narrow, steps=1)
    for optimizer, model in (wide, narrow):
        train(optimizer, model, "several", steps=1)
    assert wide[0]._fused._launcher is not None
    assert_equal(wide, narrow)
