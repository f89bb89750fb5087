"""What the recording leaves behind, what it refuses, and what it says."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvature.cases import CASES, B, K, covariance
from posterity.batches import Batch, batches
from posterity.curvature import (
    SlowPath,
    diagonal_ggn,
    elementwise,
    kronecker_ggn,
    per_example_gradients,
    prediction_covariance_product,
    pullback,
    pushforward,
)
from posterity.curvature._bags import WrittenOutBags
from posterity.errors import InvalidInput

LABELS = torch.zeros(B, dtype=torch.int64)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    model, inputs = CASES["image"].build()
    model[2].train()
    model[10].bias.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    model(inputs).sum().backward()
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    state = {name: t.clone() for name, t in model.state_dict().items()}
    if fails:
        with pytest.raises(InvalidInput, match="inputs: expected what the model takes, got float64"):
            diagonal_ggn(model, batches((inputs[:, :1], LABELS)), "categorical")
    else:
        assert "10.bias" not in diagonal_ggn(model, batches((inputs, LABELS)), "categorical")
    assert hooks(model) == 0
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()].count(False) == 1
    for name, p in model.named_parameters():
        assert (p.grad is None) if grads[name] is None else torch.equal(p.grad, grads[name])
    for name, t in model.state_dict().items():
        assert torch.equal(t, state[name])


class Remembering(nn.Module):
    """Keeps an activation, and has a parameter without a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.slope, self.out = nn.Linear(2, 4), nn.PReLU(), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        self.activation = self.slope(self.inner(x))
        return self.out(self.activation)


@pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
def test_what_a_model_keeps_of_its_calls_is_left_as_it_was() -> None:
    model = Remembering()
    diagonal_ggn(model, (torch.randn(B, 2), LABELS), "categorical")
    assert not hasattr(model, "activation")
    model(torch.ones(1, 2))
    kept = model.activation
    diagonal_ggn(model, (torch.randn(B, 2), LABELS), "categorical")
    assert model.activation is kept


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("case", ["mlp", "outside"])
@pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
def test_inside_no_grad_it_works_the_same(case: str, mode: Callable[[], AbstractContextManager[None]]) -> None:
    model, inputs = CASES[case].build()
    sigma, e = covariance(model, "diagonal"), torch.randn(B, K, dtype=torch.float64)

    def answers(inputs: Tensor) -> list[Tensor]:
        ggn = diagonal_ggn(model, batches((inputs, LABELS)), "categorical")
        step = pullback(model, inputs, e)
        product = prediction_covariance_product(model, inputs, sigma, e)
        return [*ggn.values(), *step.values(), pushforward(model, inputs, step), product]

    wanted = answers(inputs)
    with mode():
        found = answers(inputs.clone())
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_recurrent_layers_go_without_cudnn_which_has_no_gradients_in_evaluation_mode() -> None:
    model, inputs = CASES["recurrent"].build()
    seen = []
    model.rnn.register_forward_pre_hook(lambda module, args: seen.append(torch.backends.cudnn.enabled))
    with pytest.warns(SlowPath):
        diagonal_ggn(model, batches((inputs, LABELS)), "categorical")
    assert not any(seen)
    assert torch.backends.cudnn.enabled


def test_batch_statistics_are_refused_and_training_mode_is_mentioned() -> None:
    model, inputs = CASES["image"].build()
    data = batches((inputs, LABELS))
    wanted = diagonal_ggn(model, data, "categorical")
    model.train()
    with pytest.warns(UserWarning, match="BatchNorm '1' is in training mode"):
        found = diagonal_ggn(model, data, "categorical")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert model.training
    assert model[1].training
    model[1] = nn.BatchNorm2d(4, track_running_stats=False).double()
    with pytest.raises(InvalidInput, match="expected running statistics"):
        diagonal_ggn(model, data, "categorical")
    assert model.training
    assert hooks(model) == 0


@pytest.mark.parametrize("name", CASES)
def test_closed_forms_are_silent_and_others_say_why_once(name: str) -> None:
    model, inputs = CASES[name].build()
    data = batches((inputs, LABELS), batch_size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        diagonal_ggn(model, data, "categorical")
    assert all(entry.category is SlowPath for entry in caught)
    assert bool(caught) == (not CASES[name].closed)
    assert len({str(entry.message) for entry in caught}) == len(caught)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagonal_ggn(model, data, "categorical")  # the model has been spoken of


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("recurrent", "rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0 (LSTM has no closed form)"),
        ("tied", "table.weight (it is shared between layers or used outside its own)"),
        ("steps_first", "inner.weight, inner.bias (its Linear does not keep the examples apart on the first axis)"),
        ("outside", "free, scale (Outside has no closed form)"),
    ],
)
def test_the_reason_is_said(name: str, reason: str) -> None:
    model, inputs = CASES[name].build()
    with pytest.warns(SlowPath) as caught:
        diagonal_ggn(model, batches((inputs, LABELS)), "categorical")
    assert reason in str(caught[0].message)


def test_a_subclass_with_its_own_forward_is_not_trusted() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    torch.manual_seed(0)
    model, x = Doubled(2, K).double(), torch.randn(B, 2, dtype=torch.float64)
    with pytest.warns(SlowPath, match="Doubled has no closed form"):
        found = diagonal_ggn(model, batches((x, torch.zeros(B, K))), "gaussian")
    torch.testing.assert_close(found["weight"], (4 * x.square().sum(0)).expand(K, 2))


def test_hooks_of_others_stay_in_force() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(2, K).double(), torch.randn(B, 2, dtype=torch.float64)
    model.register_forward_hook(lambda module, args, output: 2 * output)
    found = diagonal_ggn(model, batches((x, torch.zeros(B, K))), "gaussian")
    torch.testing.assert_close(found["weight"], (4 * x.square().sum(0)).expand(K, 2))
    assert hooks(model) == 1


def test_outputs_that_are_not_logits_are_named() -> None:
    x = torch.randn(B, 2)
    for arrange, got in ((lambda f: f[:, 0], r"\(2,\)"), (Tensor.sum, r"\(\)"), (lambda f: f.T, r"\(3, 2\)")):
        odd = nn.Linear(2, K)
        odd.register_forward_hook(lambda module, args, output, arrange=arrange: arrange(output))
        with pytest.raises(InvalidInput, match=rf"model output: expected logits shaped \(2, ..., K\), got {got}"):
            diagonal_ggn(odd, batches((x, torch.zeros(B))), "gaussian")
    detached = nn.Linear(2, K)
    detached.register_forward_hook(lambda module, args, output: output.detach())
    with pytest.raises(InvalidInput, match="got one that none of them enters"):
        kronecker_ggn(detached, batches((x, torch.zeros(B, K))), "gaussian")
    with pytest.raises(InvalidInput, match="inputs: expected tensors"):
        per_example_gradients(detached, Batch({}, LABELS, LABELS), "gaussian")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1, -6])
def test_bags_written_out_are_those_of_torch(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    table, index = torch.randn(6, 4).double(), torch.randint(0, 6, (5, 8))
    index[0], index[1] = 0, 5  # of padding alone, if these are it
    wanted = F.embedding_bag(index, table, mode=mode, padding_idx=padding)
    with WrittenOutBags():
        found = F.embedding_bag(index, table, mode=mode, padding_idx=padding)
    torch.testing.assert_close(found, wanted)


def test_a_wrong_slope_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), 1.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x

    model, x = nn.Sequential(Scale(), nn.Linear(2, K)), torch.randn(B, 2)
    elementwise(Scale, weight=lambda layer, x: 2 * x)
    with pytest.raises(
        InvalidInput, match=r"elementwise\(Scale\): expected the derivative .* in '0.weight', got 'another"
    ):
        diagonal_ggn(model, batches((x, LABELS)), "categorical")
    elementwise(Scale, weight=lambda layer, x: x)
    diagonal_ggn(model, batches((x, LABELS)), "categorical")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (nn.Linear, {"weight": torch.relu}, "kind: expected a class of torch.nn.Module that is not torch's own"),
        (Remembering, {}, "slopes: expected at least one parameter's name and its slope, got 'none'"),
        (Remembering, {"weight": 1.0}, "weight: expected a function of the layer and its input, got 1.0"),
        (Remembering, {"weight": torch.relu, "axis": 2}, "axis: expected 1 or -1, got 2"),
    ],
)
def test_bad_registrations(kind: type[nn.Module], options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        elementwise(kind, **options)


def test_one_number_for_all_channels_is_refused() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x

    elementwise(Gain, gain=lambda layer, x: x)
    with pytest.raises(InvalidInput, match=r"Gain\.gain: expected 2 numbers, one for each channel, got 1"):
        diagonal_ggn(nn.Sequential(Gain(), nn.Linear(2, K)), batches((torch.randn(B, 2), LABELS)), "categorical")
