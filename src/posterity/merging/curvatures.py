"""Curvature files: the curvature of a model's loss in each weight, kept beside the model for later merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.batches import batches
from posterity.checkpoints import StoredTensor
from posterity.curvature import diagonal_fisher
from posterity.errors import InvalidInput, expected
from posterity.likelihoods import Likelihood
from posterity.merging.gram import gram_matrices
from posterity.merging.shards import Shard, write_shards

KINDS = ("true", "empirical", "sampled", "gram")


def write_curvature(
    model: nn.Module,
    data: Any,
    out: str | Path,
    *,
    kind: str = "true",
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 32,
    seed: int = 0,
) -> Path:
    """Measure the curvature of a model on its data, and write it as a mean over the examples.

    The Fisher information is squared example by example, so that the batch size changes nothing but speed:

        H_j = (1/N) Σ_n E[g_nj²]

    Args:
        model: The model.
        data: Anything that `posterity.batches` takes.
        out: The file, usually `<model>.fisher.safetensors` (or `.gram.safetensors`) beside the model.
        kind: "true" (labels of the model's own predictive, in closed form), "sampled" (labels drawn from it),
            "empirical" (labels of the data), or "gram" for RegMean's matrices XᵀX/N.
        likelihood: What the outputs mean.
        batch_size: Examples at a time.
        seed: Seed of drawn labels.

    Returns:
        The file. It records the number of examples, which `posterity merge` reads.
    """
    if kind not in KINDS:
        raise expected("kind", f"one of {KINDS}", kind)
    source = batches(data, batch_size=batch_size)
    if kind == "gram":
        found = gram_matrices(model, source)
    else:
        found = diagonal_fisher(model, source, likelihood, kind, seed=seed)
    mean = {name: (found[name] / source.n).float().cpu() for name in sorted(found)}
    for name, t in mean.items():
        if not bool(torch.isfinite(t).all()):
            raise InvalidInput(f"{name}: expected a finite curvature, got NaN or infinity in the model or the data")
    out = Path(out)
    entries = {name: StoredTensor(t.dtype, tuple(t.shape)) for name, t in mean.items()}
    shard = Shard(out.name, entries, {"kind": kind, "examples": str(source.n)})
    write_shards(out.parent, [(shard, mean.values())])
    return out
