"""Record what mergekit itself answers on small tensors, for the tests.

    ENVIRONMENT/bin/python benchmarks/record_mergekit.py tests/merging/mergekit.json

The environment needs mergekit, nothing of this project.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch

WEIGHTS = [0.7, 0.4, 1.2]
CASES: dict[str, dict[str, Any]] = {
    "linear": {},
    "task_arithmetic": {"normalize": False},
    "ties": {"density": 0.4, "normalize": True},
    "dare_linear": {"density": 0.5, "normalize": False, "rescale": True},
    "dare_ties": {"density": 0.5, "normalize": True, "rescale": True},
    "slerp": {"t": 0.3},
    "ties, summed": {"density": [0.4, 0.8, 1.0], "normalize": False, "lambda": 0.5},
    "dare_ties, summed": {"density": [0.5, 0.7, 0.9], "normalize": False, "rescale": True},
    "task_arithmetic, normalised": {"normalize": True, "lambda": 0.5},
}


def answer(case: str, options: dict[str, Any], base: torch.Tensor, models: list[torch.Tensor]) -> dict[str, Any]:
    """What mergekit makes of the tensors, with the masks that it drew meanwhile."""
    from mergekit.merge_methods import merge_tensors

    masks, method = [], case.split(",")[0]
    draw = torch.bernoulli

    def recorded(*arguments: Any, **keywords: Any) -> torch.Tensor:
        masks.append(draw(*arguments, **keywords))
        return masks[-1]

    if method == "slerp":
        tensors, parameters, first = models[:2], options, 0
    elif method == "linear":
        tensors, parameters, first = models, options | {"weight": WEIGHTS, "normalize": True}, None
    else:
        tensors, parameters, first = [base, *models], options | {"weight": WEIGHTS}, 0
    torch.manual_seed(1)
    with mock.patch("torch.bernoulli", recorded):
        merged = merge_tensors(tensors, method, parameters=parameters, base_index=first)
    return {"options": options, "merged": merged.tolist(), "masks": [m.tolist() for m in masks]}


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    arguments.add_argument("out", type=Path, help="the file to write")
    out = arguments.parse_args().out
    torch.manual_seed(0)
    base = torch.randn(6, 5)
    models = [base + 0.1 * torch.randn(6, 5) for _ in WEIGHTS]
    recorded = {
        "mergekit": importlib.metadata.version("mergekit"),
        "base": base.tolist(),
        "models": [m.tolist() for m in models],
        "weights": WEIGHTS,
        "cases": {name: answer(name, options, base, models) for name, options in CASES.items()},
    }
    out.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
