"""The optimizers under the conformance suite, and the problems they are driven with.

The checks, in `test_conformance_*.py`, say in our own words what PyTorch's generic tests ask of its own optimizers.
A new optimizer adds one line to `CASES`.
"""

import pytest
import torch
from torch import nn

from posterity.optim import (
    EVON,
    IVON,
    OGN,
    SAM,
    SOBA,
    STE,
    VOGN,
    BayesBiNN,
    BayesianSAM,
    Vadam,
    Variational,
    VariationalNewton,
)


def with_defaults(kind, **settings):
    return lambda params, **options: kind(params, **{"lr": 0.05, "ess": 1000, **settings, **options})


class Signs(torch.optim.Optimizer):
    """A base whose steps have one size: signs of the averaged gradient."""

    def __init__(self, params, lr=0.05, weight_decay=0.0):
        if isinstance(lr, torch.Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not weight_decay >= 0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr = float(group["lr"])
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average = self.state[p]["average"] = average.to(p)
                    average.lerp_(p.grad, 0.1)
                    p.mul_(1 - lr * group["weight_decay"]).sub_(average.sign() * lr)


def over(base, **settings):
    """`Variational` over a base: options of groups and learning rates are the base's."""

    def make(params, ess=1000, **options):
        own = {name: options.pop(name) for name in ("seed", "mc_samples", "prior", "noise") if name in options}
        moves = {**settings, **options}
        return Variational(base(params, **{"lr": 0.05, **moves}), n=ess, batch_size=8, total_steps=40, **own)

    return make


CASES = {
    "Variational, AdamW": over(torch.optim.AdamW, weight_decay=0.0, eps=1e-4),  # an eps that float16 knows
    "Variational, Adam": over(torch.optim.Adam, eps=1e-4),
    "Variational, SGD": over(torch.optim.SGD, momentum=0.5),
    "Variational, signs": over(Signs),
    "IVON": with_defaults(IVON, betas=(0.9, 0.99)),
    "IVON, tensor operations": with_defaults(IVON, betas=(0.9, 0.99), fused=False),
    "IVON, two samples": with_defaults(IVON, mc_samples=2),
    "IVON, clipped": with_defaults(IVON, clip_radius=1.0),
    "SOBA": with_defaults(SOBA),
    "Vadam": with_defaults(Vadam, hess_init=1.0),
    "VOGN": with_defaults(VOGN),  # its squared gradients are left to its own tests: losses here have no examples
    "OGN": with_defaults(OGN),
    "EVON": with_defaults(EVON, betas=(0.9, 0.99), refresh=2),
    "VariationalNewton": with_defaults(VariationalNewton, rho=1e-4),
    "BayesianSAM": with_defaults(BayesianSAM),
    "BayesBiNN": lambda params, weight_decay=None, **options: with_defaults(BayesBiNN)(params, **options),
    "STE": lambda params, ess=None, weight_decay=None, **options: STE(params, **{"lr": 0.05, **options}),
    "SAM": lambda params, ess=None, **options: SAM(params, **{"lr": 0.05, "momentum": 0.0, **options}),
}

BINARY = ("BayesBiNN", "STE")

all_optimizers = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
# Signs cannot fit a number, and have no weight decay: the prior of BayesBiNN moves them even without a gradient.
real_optimizers = pytest.mark.parametrize(
    "make", [make for name, make in CASES.items() if name not in BINARY], ids=[n for n in CASES if n not in BINARY]
)
# Plain steps, and steps without the squares of single examples, are part of the contract.
at_the_mean = pytest.mark.filterwarnings(
    "ignore:.*at the mean",
    "ignore:.*a first pass without a second",
    "ignore:VOGN. no squared",
    "ignore:OGN. no squared",
)


class Problem:
    """Fit weight · input + bias to zero: convex, with a matrix and a vector to learn."""

    def __init__(self, contiguous=True, dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(10, 5, 2, generator=generator, dtype=dtype)
        bias = torch.randn(10, 2, generator=generator, dtype=dtype)
        weight, bias = (
            (weight[..., 0], bias[..., 0]) if not contiguous else (weight[..., 0].clone(), bias[..., 0].clone())
        )
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.input = torch.randn(5, generator=generator, dtype=dtype)

    @property
    def parameters(self):
        return [self.weight, self.bias]

    @property
    def named(self):
        return [("weight", self.weight), ("bias", self.bias)]

    def loss(self):
        return (self.weight.mv(self.input) + self.bias).pow(2).sum()

    def closure(self, optimizer):
        def evaluate():
            optimizer.zero_grad()
            value = self.loss()
            value.backward()
            return value

        return evaluate

    def gradients(self):
        for p in self.parameters:
            p.grad = None
        self.loss().backward()
