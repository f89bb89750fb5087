"""Whether every optimizer still takes the steps that it took at another commit, to the bit: for changes of structure.

python tests/trajectories.py 0b36d46

The other commit is checked out into a temporary folder. Each of both sources runs in a process of its own, on this
machine and with the same explicit arguments. Weights are compared after every step, and in the end the state that both
have under one name. The exit status is 1 where anything differs. What only one of both takes is named and not compared.

Every optimizer of version 0.1.0, which ends at 0b36d46, still takes the same steps. `Variational` is younger: 736fb29
lets the noise of a given budget grow at another time, for which its steps differ from those before, from step 20 on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STEPS = 60
GAUSSIAN = {"lr": 0.05, "ess": 200.0, "weight_decay": 1e-3, "seed": 3}
ADAPTIVE = {**GAUSSIAN, "hess_init": 0.5, "betas": (0.9, 0.99)}
KINDS: dict[str, dict[str, Any]] = {
    "IVON": {**ADAPTIVE, "clip_radius": 10.0, "mc_samples": 1},
    "IVON tensors": {**ADAPTIVE, "clip_radius": 10.0, "mc_samples": 1, "fused": False},
    "IVON gradsq": {**ADAPTIVE, "hess_approx": "gradsq", "batch_size": 16, "fused": False},
    "SOBA": {**GAUSSIAN, "lr": 0.02, "hess_init": 0.5, "rho": 0.01},
    "SOBA momentum": {**GAUSSIAN, "lr": 0.02, "hess_init": 0.5, "rho": 0.01, "momentum": 0.9},
    "VOGN": {**ADAPTIVE, "damping": 0.01},
    "OGN": {**ADAPTIVE, "damping": 0.01},
    "Vadam": {**ADAPTIVE, "lr": 0.01, "eps": 1e-8},
    "EVON": {**ADAPTIVE, "basis_beta": 0.9, "refresh": 5},
    "VariationalNewton": {**GAUSSIAN, "hess_init": 0.5, "rho": 0.01, "beta1": 0.9},
    "BayesianSAM": {**ADAPTIVE, "lr": 0.02},
    "SAM": {"lr": 0.02, "rho": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
    "BayesBiNN": {"lr": 1e-3, "ess": 200.0, "temperature": 1e-2, "natural_init": 1.0, "beta": 0.9, "seed": 3},
    "STE": {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "latent_init": 0.1},
    "Variational AdamW": {},
    "Variational SGD": {},
}
WAYS = ("context", "closure", "attached", "accumulated")


def made(kind: str, parameters: Any) -> Any:
    """An optimizer of some kind, with explicit arguments."""
    import torch

    optim = importlib.import_module("posterity.optim")
    name, _, base = kind.partition(" ")
    if name != "Variational":
        return getattr(optim, name)(parameters, **KINDS[kind])
    own = {"AdamW": {"lr": 0.01, "weight_decay": 0.0}, "SGD": {"lr": 0.05, "momentum": 0.9}}[base]
    moved = getattr(torch.optim, base)(parameters, **own)
    return optim.Variational(moved, n=200, total_steps=STEPS, batch_size=16, budget=0.01, seed=3)


def states(kind: str, way: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Weights after every step of a small network, and all state after the last, as hashes."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4))
    data = torch.randn(STEPS, 16, 1, 5, 5), torch.randint(0, 4, (STEPS, 16))
    optimizer = made(kind, model.parameters())
    if way == "attached":
        optimizer.attach(model)
    for k, (x, y) in enumerate(zip(*data, strict=True)):

        def loss(part: slice, x: Any = x, y: Any = y) -> Any:
            value = F.cross_entropy(model(x[part]), y[part])
            value.backward()
            return value

        optimizer.zero_grad()
        if way == "closure":
            optimizer.step(lambda loss=loss: loss(slice(None)))
        elif way == "attached":
            loss(slice(None))
            optimizer.step()
        else:
            for part in (slice(0, 8), slice(8, 16)) if way == "accumulated" else (slice(None),):
                with optimizer.sampled_params(train=True):
                    if kind in ("VOGN", "OGN"):
                        optimizer.backward(model, x[part], y[part], "categorical")
                    else:
                        loss(part)
                if kind.endswith("SAM"):
                    with optimizer.perturbed_params():
                        loss(part)
            optimizer.step()
        yield f"step {k}", {str(i): _hash(p) for i, p in enumerate(model.parameters())}
    yield (
        "state",
        {
            f"{i}: {name}": _hash(t)
            for i, p in enumerate(model.parameters())
            for name, t in optimizer.state.get(p, {}).items()
            if isinstance(t, torch.Tensor)
        },
    )


def _hash(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().contiguous().cpu().numpy().tobytes()).hexdigest()[:16]


def taken() -> dict[str, Any]:
    """All trajectories, or why there is none."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for kind in KINDS:
        for way in WAYS:
            try:
                found[f"{kind}, {way}"] = dict(states(kind, way))
            except Exception as error:  # a way that the kind refuses is compared too
                found[f"{kind}, {way}"] = {"refused": {"kind": type(error).__name__}}
    return found


def of_source(source: Path) -> dict[str, Any]:
    """The trajectories of another source, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--print"]
    return dict(json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout))


def main() -> None:
    """Compare two commits, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--print", action="store_true", help="print the trajectories of the source in PYTHONPATH")
    given = parser.parse_args()
    if given.print:
        print(json.dumps(taken()))
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", given.commit, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        before = of_source(Path(folder) / "src")
    after = of_source(ROOT / "src")
    compared = differing = 0
    for name, steps in before.items():
        where = []
        for what, tensors in steps.items():
            there = after[name].get(what, {})
            shared = tensors.keys() & there.keys()
            compared += len(shared)
            other = [key for key in shared if tensors[key] != there[key]]
            differing += len(other)
            where += [what] * bool(other)
        if where:
            print(f"{name}: differs from {where[0]} to {where[-1]}, in {len(where)} of {len(steps)}")
        if ("refused" in steps) != ("refused" in after[name]):
            print(f"{name}: only one of the two takes these steps")
    print(f"{len(before)} trajectories, {compared} tensors compared, {differing} differ")
    sys.exit(int(differing > 0))


if __name__ == "__main__":
    main()
