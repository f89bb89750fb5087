"""Networks with every kind of layer, and their Jacobians written out one output at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import random_unstructured

from posterity.curvature import Covariance, DiagonalCovariance, FullCovariance, KroneckerCovariance, elementwise
from posterity.inputs import call
from posterity.trees import trainable

B, K = 5, 3


class Tokens(nn.Module):
    """Repeated and padded tokens, a linear layer at every step, normalisation, mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=0)
        self.norm = nn.LayerNorm(4)
        self.step = nn.Linear(4, 5)
        self.scale = nn.RMSNorm(5)
        self.out = nn.Linear(5, K)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.scale(torch.tanh(self.step(self.norm(self.table(ids))))).mean(1))


class Bags(nn.Module):
    """Bags of tokens, summed by weight, averaged and maximised, without those that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.mean, self.max = (
            nn.EmbeddingBag(6, 4, mode=mode, padding_idx=0) for mode in ("sum", "mean", "max")
        )
        self.out = nn.Linear(4, K)

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        return self.out(torch.tanh(self.sum(ids, per_sample_weights=weights) + self.mean(ids) * self.max(ids)))


class Positions(nn.Module):
    """A table of positions looked up once for all examples, a linear layer on top of it, and ids without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kind = nn.Embedding(6, 4), nn.Embedding(5, 4)
        self.place, self.mix = nn.Embedding(3, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, K)

    def forward(self, ids: Tensor, kind: Tensor) -> Tensor:
        place = self.mix(torch.tanh(self.place(torch.arange(3).unsqueeze(0))))
        return self.out(torch.tanh((self.table(ids) + place) * self.kind(kind).unsqueeze(1)).sum(1))


class Constant(nn.Module):
    """A layer called once for all examples whose output would not bear being written out for each."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(2, K)

    def forward(self, x: Tensor) -> Tensor:
        once = torch.tanh(self.inner(torch.ones(1, 4, dtype=x.dtype)))
        return self.out(torch.cat([x @ once.T, x[:, :1]], dim=1)[:, -2:])


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.out = nn.Linear(4, K, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.shared(torch.sin(self.shared(x)))))


class Tied(nn.Module):
    """The table of the input is the weight of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(K, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, K)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mix(self.table(ids % K).mean(1))))


class Outside(nn.Module):
    """A weight used once by its layer and once behind its back, and parameters of no layer, one without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.free, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))
        self.out = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.out(torch.tanh(self.inner(x) * self.free) @ self.inner.weight)


class StepsFirst(nn.Module):
    """As many steps as examples, and the steps on the first axis of the inner layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(x.transpose(0, 1))).transpose(0, 1).mean(1))


class Routed(nn.Module):
    """Each step is sent to one expert: as many rows as examples may be those of a few."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.out = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.flatten(0, 1)
        p, chosen = self.gate(x).flatten(0, 1).softmax(-1).max(-1)
        y = torch.zeros_like(steps)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                y[rows] = p[rows].unsqueeze(-1) * torch.tanh(expert(steps[rows]))
        return self.out(y.view_as(x).sum(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 3, batch_first=True)
        self.out = nn.Linear(3, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.out = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.block(x).mean(1))


class Two(nn.Module):
    """Two inputs by name, a layer that is never called, and one whose output no logit reads."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.unused = nn.Linear(4, K), nn.Linear(4, K), nn.Linear(4, K)
        self.other = nn.Linear(K, 2)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        left = torch.sin(self.left(x))
        self.other(left)
        return left * self.right(z)


class ResponseNorm(nn.Module):
    """A normalisation that torch does not have, over positions, with shapes (1, C, 1, 1) and (C, 1, 1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(1, channels, 1, 1)), nn.Parameter(torch.zeros(channels, 1, 1))

    def normalised(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.normalised(x) + self.shift


class Threshold(nn.Module):
    """max(x, τ), with one τ for each feature on the last axis: not linear in its parameter."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.threshold)


elementwise(ResponseNorm, gain=ResponseNorm.normalised, shift=lambda layer, x: torch.ones_like(x))
elementwise(Threshold, axis=-1, threshold=lambda layer, x: x < layer.threshold)


def _registered() -> nn.Module:
    """Layers that are not torch's own, at many positions and at one."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), ResponseNorm(4), nn.Flatten(2), Threshold(4), nn.Flatten(), nn.Linear(16, 5), Threshold(5),
        nn.Linear(5, K),
    )  # fmt: skip


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, K)
    )


def _pruned() -> nn.Module:
    """Half a weight is masked, and what is learnt of it lies under another name in the layer."""
    return nn.Sequential(random_unstructured(nn.Linear(4, 5), "weight", 0.5), nn.Tanh(), nn.Linear(5, K))


def _image() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=(1, 2)),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), dilation=(2, 1), groups=2, padding=1, padding_mode="reflect"),
        nn.GroupNorm(3, 6),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(6, 4, 2),  # a single position
        nn.Flatten(),
        nn.BatchNorm1d(4),
        nn.Linear(4, K),
    )


def _signal() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 4, padding="same", padding_mode="circular"),
        nn.InstanceNorm1d(4, affine=True),
        nn.Tanh(),
        nn.Conv1d(4, 4, 3, groups=4, bias=False),
        nn.Flatten(),
        nn.Linear(16, K),
    )


def _volume() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(16, K))


def _grid() -> nn.Module:
    """Scales and shifts with two axes, at three positions and at one."""
    return nn.Sequential(
        nn.Linear(4, 4),
        nn.LayerNorm((2, 4)),
        nn.Tanh(),
        nn.Flatten(1, 2),
        nn.Linear(4, 3),
        nn.LayerNorm((6, 3)),
        nn.Flatten(),
        nn.Linear(18, K),
    )


@dataclass(frozen=True)
class Case:
    """A network, how to draw inputs, and whether every parameter has a closed form."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    closed: bool = True

    def build(self, seed: int = 0) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        model = self.make().double()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        for p in model.parameters():
            nn.init.normal_(p, std=0.6)
        return model.eval(), self.inputs()


def _normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(B, *shape, dtype=torch.float64)


CASES = {
    "mlp": Case(_mlp, _normal(4)),
    "image": Case(_image, _normal(2, 7, 6)),
    "signal": Case(_signal, _normal(2, 6)),
    "volume": Case(_volume, _normal(1, 3, 3, 3)),
    "tokens": Case(Tokens, lambda: torch.randint(0, 6, (B, 7))),
    "bags": Case(Bags, lambda: {"ids": torch.randint(0, 6, (B, 3)).tril(), "weights": _normal(3)()}, False),
    "positions": Case(Positions, lambda: {"ids": torch.randint(0, 6, (B, 3)), "kind": torch.randint(0, 5, (B,))}),
    "constant": Case(Constant, _normal(4), False),
    "grid": Case(_grid, _normal(3, 2, 4)),
    "twice": Case(Twice, _normal(4)),
    "two": Case(Two, lambda: {"x": _normal(4)(), "z": _normal(4)()}),
    "normed": Case(lambda: nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, K)), _normal(4), False),
    "registered": Case(_registered, _normal(2, 4, 4)),
    "slopes": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, K)), _normal(4), False),
    "tied": Case(Tied, lambda: torch.randint(0, K, (B, 4)), False),
    "outside": Case(Outside, _normal(4), False),
    "steps_first": Case(StepsFirst, _normal(B, 4), False),
    "pruned": Case(_pruned, _normal(4), False),
    "routed": Case(Routed, _normal(2, 4), False),
    "attention": Case(Attention, _normal(3, 4), False),
    "recurrent": Case(Recurrent, _normal(3, 4), False),
}


def jacobians(model: nn.Module, inputs: Any) -> Tensor:
    """J (B, outputs, P), one output of one example at a time."""
    f = call(model, inputs)
    parameters = list(trainable(model).values())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(y, parameters, retain_graph=True, materialize_grads=True)])
        for y in f.flatten()
    ]
    return torch.stack(rows).unflatten(0, (len(f), -1))


def covariance(model: nn.Module, shape: str) -> Covariance:
    """A random covariance of all parameters."""
    names = trainable(model)
    if shape == "full":
        root = torch.randn(sum(p.numel() for p in names.values()), 4, dtype=torch.float64)
        return FullCovariance({name: p.shape for name, p in names.items()}, root @ root.T)
    variance = {name: torch.rand_like(p.detach()) for name, p in names.items()}
    if shape == "diagonal":
        return DiagonalCovariance(variance)
    turned = {name: p for name, p in names.items() if shape == "kronecker" or p.dim() > 1}
    bases = {name: tuple(_orthogonal(d) for d in _sizes(p)) for name, p in turned.items()}
    return KroneckerCovariance(bases, {name: v.reshape(_sizes(v)) for name, v in variance.items()})


def dense(covariance: Covariance) -> Tensor:
    """The same as a matrix over all parameters."""
    if isinstance(covariance, FullCovariance):
        return covariance.matrix
    if isinstance(covariance, DiagonalCovariance):
        return torch.cat([v.flatten() for v in covariance.variance.values()]).diag()
    blocks = []
    for name, variance in covariance.variance.items():
        bases = covariance.bases.get(name, (torch.eye(variance.numel(), dtype=variance.dtype),))
        u = bases[0] if len(bases) == 1 else torch.kron(*bases)
        blocks.append(u * variance.flatten() @ u.T)
    return torch.block_diag(*blocks)


def _sizes(p: Tensor) -> tuple[int, ...]:
    return (p.numel(),) if p.dim() < 2 else (p.shape[0], p.numel() // p.shape[0])


def _orthogonal(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]
