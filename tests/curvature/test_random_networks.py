"""Networks put together at random, every question about them against Jacobians written out."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from curvature.cases import covariance, dense, jacobians
from posterity.batches import batches
from posterity.curvature import (
    diagonal_ggn,
    full_ggn,
    kernel,
    per_example_squared_gradients,
    prediction_covariance,
    prediction_covariance_product,
    self_influence,
)
from posterity.trees import to_vector

pytestmark = pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
WIDTH = 3  # of all that is hidden
Draw = Callable[[st.SearchStrategy], object]


class Residual(nn.Module):
    """A step added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.step(x))


class Chosen(nn.Module):
    """A layer that only some of the examples pass."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.flatten(1).mean(1) > 0
        return x.masked_scatter(chosen.view(-1, *[1] * (x.dim() - 1)), torch.tanh(self.step(x[chosen])))


class Largest(nn.Module):
    """The step of each example at which the sum is largest, picked by index."""

    def forward(self, x: Tensor) -> Tensor:
        return x[torch.arange(len(x)), x.sum(-1).argmax(1)]


HIDDEN = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: weight_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.RMSNorm(WIDTH),
    lambda: nn.ReLU(inplace=True),
    nn.PReLU,
    nn.SiLU,
    Residual,
    Chosen,
)


def pixels(draw: Draw, examples: int) -> tuple[list[nn.Module], Tensor]:
    """A convolution, a normalisation, and what is left of an image as one vector."""
    convolution = nn.Conv2d(
        2,
        4,
        draw(st.integers(1, 2)),
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)),
        groups=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
    )
    norms = (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.Tanh())
    layers = [convolution, draw(st.sampled_from(norms)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, WIDTH)]
    return layers, torch.randn(examples, 2, 3, 4)


@st.composite
def networks(draw: Draw) -> tuple[nn.Module, Tensor]:
    """A network with some frozen parameters, in evaluation mode, and its inputs."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    examples, steps = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["rows", "steps", "tokens", "pixels"]))
    layers: list[nn.Module] = []
    if kind == "pixels":
        layers, x = pixels(draw, examples)
    elif kind == "tokens":
        layers.append(nn.Embedding(4, WIDTH, padding_idx=draw(st.sampled_from([None, 0]))))
        x = torch.randint(0, 4, (examples, steps))
    else:
        x = torch.randn(examples, *([steps] if kind == "steps" else []), WIDTH)
    layers += [make() for make in draw(st.lists(st.sampled_from(HIDDEN), max_size=3))]
    width = WIDTH
    if kind in ("steps", "tokens"):
        layers.append(draw(st.sampled_from([Largest(), nn.Flatten()])))
        width = WIDTH * steps if isinstance(layers[-1], nn.Flatten) else WIDTH
    model = nn.Sequential(*layers, nn.Linear(width, draw(st.integers(1, 3)), bias=draw(st.booleans()))).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
        p.requires_grad_(draw(st.integers(0, 5)) > 0)
    model[-1].weight.requires_grad_(True)
    return model.eval(), x.double() if x.is_floating_point() else x


@given(networks(), st.sampled_from(["diagonal", "kronecker", "full"]), st.sampled_from([None, 1, 3000]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_every_question_about_a_random_network(case: tuple[nn.Module, Tensor], shape: str, memory: int | None) -> None:
    model, x = case
    j, sigma, f = jacobians(model, x), covariance(model, shape), model(x).detach()
    e, matrix = torch.randn_like(f), dense(sigma)
    v = j @ matrix @ j.mT
    ve = (v @ e.unsqueeze(-1)).squeeze(-1)
    data = batches((x, f - e), batch_size=2)  # residuals of a regression are e
    ggn = torch.einsum("nkp,nkq->pq", j, j)
    found = {
        "V": (prediction_covariance(model, x, sigma, memory=memory), v),
        "V e": (prediction_covariance_product(model, x, sigma, e, memory=memory), ve),
        "eᵀV e": (self_influence(model, x, sigma, e, memory=memory), (e * ve).sum(-1)),
        "kernel": (
            kernel(model, x, x[:1], sigma, memory=memory),
            torch.einsum("nkp,pq,mlq->nmkl", j, matrix, j[:1]),
        ),
        "diagonal": (to_vector(diagonal_ggn(model, data, "gaussian", memory=memory)), ggn.diagonal()),
        "matrix": (full_ggn(model, data, "gaussian", memory=memory), ggn),
        "squares": (
            to_vector(per_example_squared_gradients(model, data, "gaussian", memory=memory)),
            torch.einsum("nkp,nk->np", j, e).square().sum(0),
        ),
    }
    for name, (answer, wanted) in found.items():
        torch.testing.assert_close(answer, wanted, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")
