"""What a GPU has to show beside its speed: the same noise, the same steps, CUDA graphs, torch.compile, no waiting.

IVON and Variational over AdamW go through the same checks. Variational has no noise in its first twenty steps, which
tensor operations take; its graphs are captured after them. Prints one line for each check and ends with an error if one
fails; needs nothing but torch and Triton.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posterity.noise import Key, bits, normal
from posterity.optim import IVON, Variational

SETTINGS = {"lr": 0.1, "ess": 1000.0, "betas": (0.9, 0.99), "hess_init": 0.5}
HOWS = ("context", "until_step", "ahead")
Optimizer = IVON | Variational


def ivon(params: Iterable[Tensor], **options: object) -> IVON:
    return IVON(params, **{**SETTINGS, **options})  # type: ignore[arg-type]


def variational(params: Iterable[Tensor], **options: object) -> Variational:
    base = torch.optim.AdamW(params, lr=1e-3)
    given = {"n": 1000, "batch_size": 32, "total_steps": 100, "budget": 1.0, **options}
    return Variational(base, **given)  # type: ignore[arg-type]


KINDS = {"IVON": ivon, "Variational": variational}
FIRST = {"IVON": 3, "Variational": 23}  # steps before anything is captured or watched
STEPS = {"IVON": 10, "Variational": 45}  # of a comparison


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)]
    return nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)


def data(k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    inputs = torch.randn(32, 3, 16, 16, generator=generator).cuda()
    return inputs.to(memory_format=torch.channels_last), torch.randint(10, (32,), generator=generator).cuda()


def make(kind: str, how: str, **options: object) -> tuple[nn.Module, Optimizer, Callable[[Tensor, Tensor], None]]:
    """A model, its optimizer, and one step of training it."""
    model = network()
    optimizer = KINDS[kind](model.parameters(), **options)
    if how == "ahead":
        optimizer.attach(model, ahead=True)

    def step(inputs: Tensor, targets: Tensor) -> None:
        if how == "ahead":
            cross_entropy(model(inputs), targets).backward()
        else:
            with optimizer.sampled_params(train=True, until_step=how == "until_step"):
                cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def weights(model: nn.Module, optimizer: Optimizer) -> Tensor:
    optimizer.eval()
    optimizer.train()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(kind: str, how: str, **options: object) -> Tensor:
    model, optimizer, step = make(kind, how, **options)
    for k in range(STEPS[kind]):
        step(*data(k))
    return weights(model, optimizer)


def replayed(kind: str, how: str) -> Tensor:
    """The same with the whole step as a CUDA graph, after some steps to warm up."""
    model, optimizer, step = make(kind, how)
    inputs, targets = data(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for k in range(FIRST[kind]):
            for target, source in zip((inputs, targets), data(k), strict=True):
                target.copy_(source)
            step(inputs, targets)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(inputs, targets)
    for k in range(FIRST[kind], STEPS[kind]):
        for target, source in zip((inputs, targets), data(k), strict=True):
            target.copy_(source)
        graph.replay()
    return weights(model, optimizer)


def compiled(kind: str, how: str) -> Tensor:
    model, optimizer, step = make(kind, how)
    function = torch.compile(step)
    for k in range(STEPS[kind]):
        function(*data(k))
    return weights(model, optimizer)


def waits_for_nothing(kind: str, how: str) -> bool:
    _, _, step = make(kind, how)
    batch = data(0)
    for _ in range(FIRST[kind]):
        step(*batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):  # also one at which Variational looks at all widths
            step(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def perceptron(kind: str, steps: int = 70, samples: int = 1, **options: object) -> Tensor:
    """A longer training without convolutions, whose own rounding is not in the way; the last number is λ."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(37, 300), nn.Tanh(), nn.Linear(300, 11)).cuda()
    optimizer = KINDS[kind](model.parameters(), **options)
    generator = torch.Generator("cuda").manual_seed(5)
    for _ in range(steps):
        inputs = torch.randn(64, 37, generator=generator, device="cuda")
        targets = torch.randint(11, (64,), generator=generator, device="cuda")
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                (cross_entropy(model(inputs), targets) / samples).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = weights(model, optimizer)
    if isinstance(optimizer, Variational):
        relative = torch.tensor([math.log(optimizer.state_dict()["meter"]["ess"])], device="cuda")
        found = torch.cat([found, relative])
    return found


def sampled(device: str) -> Tensor:
    weight = nn.Parameter(torch.zeros(100_000, device=device))
    optimizer = IVON([weight], lr=0.1, ess=1.0, hess_init=1.0, weight_decay=0.0)
    with optimizer.sampled_params(train=True):
        return weight.detach().cpu().clone()


def checks_of(kind: str) -> dict[str, Callable[[], float]]:
    plain = trained(kind, "context", fused=False)
    moved = float((plain - torch.cat([p.detach().flatten() for p in network().parameters()])).abs().max())
    checks: dict[str, Callable[[], float]] = {}
    cases = {
        "a perceptron": {},
        "three samples a step": {"samples": 3},
        "noise of a rank": {"noise": "per_rank"},
    }
    for name, options in cases.items():
        checks[f"{kind}, kernels and tensor operations, {name}"] = lambda options=options: _far(
            perceptron(kind, **options), perceptron(kind, **options, fused=False)
        )
    for how in HOWS:
        checks |= {
            f"{kind}, kernels and tensor operations, {how}": lambda how=how: _far(trained(kind, how), plain) / moved,
            f"{kind}, CUDA graph, {how}": lambda how=how: _far(replayed(kind, how), trained(kind, how)) / moved,
            f"{kind}, compiled step, {how}": lambda how=how: _far(compiled(kind, how), trained(kind, how)) / moved,
            f"{kind}, waits, {how}": lambda how=how: float(not waits_for_nothing(kind, how)),
        }
    return checks


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_checks: expected a GPU, got none")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False  # ten bits of a weight would hide, and make, differences
    torch.use_deterministic_algorithms(True, warn_only=True)
    key = Key(3, 5, 0, 7)
    same_bits = all(map(torch.equal, bits(key, 0, 1 << 20), [t.cpu() for t in bits(key, 0, 1 << 20, "cuda")]))
    checks: dict[str, Callable[[], float]] = {
        "integer bits, CPU and GPU differ in": lambda: float(not same_bits),
        "normals, CPU and GPU": lambda: _far(normal(key, 100_000), normal(key, 100_000, device="cuda").cpu()),
        "normals of the kernel": lambda: _far(normal(Key(0, 1), 100_000), sampled("cuda")),
    }
    for kind in KINDS:
        checks |= checks_of(kind)
    failed = []
    for name, check in checks.items():
        try:
            error = check()
        except Exception as exception:  # every check is to be reported
            error = float("inf")
            print(f"{type(exception).__name__}: {exception}")
        print(f"{name}: {error:.2g}", flush=True)
        failed += [name] if error > 1e-4 else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


if __name__ == "__main__":
    main()
