"""What a GPU has to show beside its speed: the same noise, the same steps, CUDA graphs, torch.compile, no waiting.

Prints one line for each check and ends with an error if one fails; needs nothing but torch and Triton.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posterity.noise import Key, bits, normal
from posterity.optim import IVON

SETTINGS = {"lr": 0.1, "ess": 1000.0, "betas": (0.9, 0.99), "hess_init": 0.5}
HOWS = ("context", "until_step", "ahead")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)]
    return nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)


def data(k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    inputs = torch.randn(32, 3, 16, 16, generator=generator).cuda()
    return inputs.to(memory_format=torch.channels_last), torch.randint(10, (32,), generator=generator).cuda()


def make(how: str, **options: object) -> tuple[nn.Module, IVON, Callable[[Tensor, Tensor], None]]:
    """A model, its optimizer, and one step of training it."""
    model = network()
    optimizer = IVON(model.parameters(), **{**SETTINGS, **options})  # type: ignore[arg-type]
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


def weights(model: nn.Module, optimizer: IVON) -> Tensor:
    optimizer.eval()
    optimizer.train()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(how: str, steps: int = 10, **options: object) -> Tensor:
    model, optimizer, step = make(how, **options)
    for k in range(steps):
        step(*data(k))
    return weights(model, optimizer)


def replayed(how: str, steps: int = 10) -> Tensor:
    """The same with the whole step as a CUDA graph, after three steps to warm up."""
    model, optimizer, step = make(how)
    inputs, targets = data(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for k in range(3):
            for target, source in zip((inputs, targets), data(k), strict=True):
                target.copy_(source)
            step(inputs, targets)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(inputs, targets)
    for k in range(3, steps):
        for target, source in zip((inputs, targets), data(k), strict=True):
            target.copy_(source)
        graph.replay()
    return weights(model, optimizer)


def compiled(how: str, steps: int = 10) -> Tensor:
    model, optimizer, step = make(how)
    function = torch.compile(step)
    for k in range(steps):
        function(*data(k))
    return weights(model, optimizer)


def waits_for_nothing(how: str) -> bool:
    _, _, step = make(how)
    batch = data(0)
    for _ in range(3):
        step(*batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def perceptron(steps: int = 40, samples: int = 1, **options: object) -> Tensor:
    """A longer training without convolutions, whose own rounding is not in the way."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(37, 300), nn.Tanh(), nn.Linear(300, 11)).cuda()
    optimizer = IVON(model.parameters(), lr=0.1, ess=1000.0, hess_init=0.1, **options)  # type: ignore[arg-type]
    generator = torch.Generator("cuda").manual_seed(5)
    for _ in range(steps):
        inputs = torch.randn(64, 37, generator=generator, device="cuda")
        targets = torch.randint(11, (64,), generator=generator, device="cuda")
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                (cross_entropy(model(inputs), targets) / samples).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model, optimizer)


def sampled(device: str) -> Tensor:
    weight = nn.Parameter(torch.zeros(100_000, device=device))
    optimizer = IVON([weight], lr=0.1, ess=1.0, hess_init=1.0, weight_decay=0.0)
    with optimizer.sampled_params(train=True):
        return weight.detach().cpu().clone()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_checks: expected a GPU, got none")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False  # ten bits of a weight would hide, and make, differences
    torch.use_deterministic_algorithms(True, warn_only=True)
    plain = trained("context", fused=False)
    moved = (plain - torch.cat([p.detach().flatten() for p in network().parameters()])).abs().max()
    key = Key(3, 5, 0, 7)
    same_bits = all(map(torch.equal, bits(key, 0, 1 << 20), [t.cpu() for t in bits(key, 0, 1 << 20, "cuda")]))
    checks: dict[str, Callable[[], float]] = {
        "integer bits, CPU and GPU differ in": lambda: float(not same_bits),
        "normals, CPU and GPU": lambda: _far(normal(key, 100_000), normal(key, 100_000, device="cuda").cpu()),
        "normals of the kernel": lambda: _far(normal(Key(0, 1), 100_000), sampled("cuda")),
        "kernels and tensor operations, a perceptron": lambda: _far(perceptron(), perceptron(fused=False)),
    }
    for name, options in {"three samples a step": {"samples": 3}, "noise of a rank": {"noise": "per_rank"}}.items():
        checks[f"kernels and tensor operations, {name}"] = lambda options=options: _far(
            perceptron(**options), perceptron(**options, fused=False)
        )
    for how in HOWS:
        checks |= {
            f"kernels and tensor operations, {how}": lambda how=how: _far(trained(how), plain) / float(moved),
            f"CUDA graph, {how}": lambda how=how: _far(replayed(how), trained(how)) / float(moved),
            f"compiled step, {how}": lambda how=how: _far(compiled(how), trained(how)) / float(moved),
            f"waits, {how}": lambda how=how: float(not waits_for_nothing(how)),
        }
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
