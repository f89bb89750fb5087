"""Covariances of outputs that are sequences and maps, against Jacobians written out by torch.func."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from curvature.cases import K, covariance, dense
from networks import perceptron
from posterity.curvature import (
    FullCovariance,
    KroneckerCovariance,
    diagonal_ggn,
    full_ggn,
    kernel,
    prediction_covariance,
)
from posterity.curvature.covariance import Covariance, DiagonalCovariance
from posterity.errors import InvalidInput
from posterity.trees import to_vector, trainable

pytestmark = pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
B, T = 3, 3


class Mixing(nn.Module):
    """Every step reads those before it, through a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.out = nn.Linear(3, K)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.table(ids))[0])


def _map() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.PReLU(4), nn.GroupNorm(2, 4), nn.Conv2d(4, K, 1))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "steps": (lambda: perceptron(4, 5, K), lambda: torch.randn(B, T, 4), -1),
    "mixing": (Mixing, lambda: torch.randint(0, 6, (B, T)), -1),
    "map": (_map, lambda: torch.randn(B, 2, 1, 2), 1),
    "signal": (lambda: nn.Conv1d(2, K, 2), lambda: torch.randn(B, 2, T), -2),
}


def build(name: str) -> tuple[nn.Module, Tensor, int]:
    torch.manual_seed(0)
    make, inputs, axis = CASES[name]
    model, x = make().double().eval(), inputs()
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model, x.double() if x.is_floating_point() else x, axis


def jacobian(model: nn.Module, x: Tensor, axis: int, names: list[str]) -> Tensor:
    """J (B, ..., K, P) of all outputs at once."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = jacrev(lambda some: functional_call(model, {**weights, **some}, (x,)).movedim(axis, -1))(
        {name: weights[name] for name in names}
    )
    f = model(x).movedim(axis, -1)
    return torch.cat([found[name].reshape(*f.shape, -1) for name in names], dim=-1)


def blocks(model: nn.Module, x: Tensor, axis: int, names: list[str], matrix: Tensor) -> Tensor:
    """J Σ Jᵀ at every position."""
    j = jacobian(model, x, axis, names)
    return j @ matrix @ j.mT


@pytest.mark.parametrize("shape", ["diagonal", "kronecker", "full"])
@pytest.mark.parametrize("name", CASES)
def test_every_position_has_the_covariance_of_its_own_jacobian(name: str, shape: str) -> None:
    model, x, axis = build(name)
    sigma = covariance(model, shape)
    wanted = blocks(model, x, axis, list(trainable(model)), dense(sigma))
    found = prediction_covariance(model, x, sigma, class_axis=axis)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_little_memory_changes_nothing() -> None:
    model, x, _ = build("steps")
    sigma = covariance(model, "diagonal")
    little, much = (prediction_covariance(model, x, sigma, memory=memory) for memory in (1, None))
    torch.testing.assert_close(little, much)


def test_maps_have_their_classes_on_axis_one_unless_said() -> None:
    model, x, _ = build("map")
    sigma = covariance(model, "diagonal")
    by_default = prediction_covariance(model, x, sigma, class_axis=None)
    torch.testing.assert_close(by_default, prediction_covariance(model, x, sigma, class_axis=1))


def only(sigma: Covariance, names: list[str], like: dict[str, Tensor]) -> Covariance:
    """The part of a covariance that belongs to some of the parameters."""
    if isinstance(sigma, FullCovariance):
        size = sum(like[name].numel() for name in names)
        return FullCovariance({name: like[name].shape for name in names}, sigma.matrix[-size:, -size:])
    variance = {name: sigma.variance[name] for name in names}
    if isinstance(sigma, DiagonalCovariance):
        return DiagonalCovariance(variance)
    return KroneckerCovariance({name: sigma.bases[name] for name in names}, variance)


@pytest.mark.parametrize("names", [["out.weight", "out.bias"], ["out.weight"], ["out.bias"]])
@pytest.mark.parametrize("shape", ["diagonal", "kronecker", "full"])
def test_the_last_layer_of_a_sequence(shape: str, names: list[str]) -> None:
    model, x, axis = build("mixing")
    sigma = only(covariance(model, shape), names, trainable(model))
    wanted = blocks(model, x, axis, names, dense(sigma))
    torch.testing.assert_close(prediction_covariance(model, x, sigma), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("names", [["out.weight", "out.bias"], ["out.bias"]])
def test_the_curvature_of_the_last_layer_of_a_sequence(names: list[str]) -> None:
    model, x, axis = build("mixing")
    for name, p in model.named_parameters():
        p.requires_grad_(name in names)
    j = jacobian(model, x, axis, names)
    p = model(x).detach().softmax(-1)
    wanted = torch.einsum("ntkp,ntkl,ntlq->pq", j, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2), j)
    data = (x, torch.zeros(B, T, dtype=torch.int64))
    torch.testing.assert_close(full_ggn(model, data, "categorical"), wanted, rtol=1e-9, atol=1e-9)
    found = to_vector(diagonal_ggn(model, data, "categorical", memory=1))
    torch.testing.assert_close(found, wanted.diagonal(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(B, 4), (B, T, 4)])
def test_a_last_layer_in_an_autocast_of_its_own(shape: tuple[int, ...]) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, K)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                return self.head(x.half())

    torch.manual_seed(0)
    model, x = Half(), torch.randn(shape)
    total = x.half().double().reshape(-1, 4).square().sum(0)
    found = diagonal_ggn(model, (x, torch.zeros(*shape[:-1], K)), "gaussian")
    torch.testing.assert_close(found["head.weight"].double(), total.expand(K, 4), rtol=1e-5, atol=1e-5)
    sigma = DiagonalCovariance({"head.weight": torch.ones(K, 4)})
    wanted = x.half().double().square().sum(-1)[..., None, None] * torch.eye(K).double()
    torch.testing.assert_close(prediction_covariance(model, x, sigma).double(), wanted, rtol=1e-5, atol=1e-5)


def test_kernels_of_sequences_are_refused() -> None:
    model, x, _ = build("steps")
    with pytest.raises(InvalidInput, match=r"model output: expected shape \(B, K\)"):
        kernel(model, x, x, covariance(model, "diagonal"))
