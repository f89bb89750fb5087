"""The card of a merged model: what was merged and how, for whoever finds it later."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from posterity import __version__
from posterity.merging.checkpoint import Checkpoint
from posterity.merging.job import Opened, Source


def card(opened: Opened) -> str:
    """A Markdown page with the method, its options, and every source with its weight."""
    job, method = opened.job, opened.job.method
    options = dataclasses.asdict(method)  # type: ignore[call-overload]  # all methods are dataclasses
    if method.needs_curvature:
        options |= {"prior_precision": job.prior_precision, "temperature": job.temperature}
    lines = ["# Merged model", "", f"Merged by posterity {__version__}, method `{method.name}`", ""]
    lines += [f"- {name}: {value}" for name, value in options.items()]
    lines += ["", "| model | source | weight | examples | curvature |", "|---|---|---|---|---|"]
    if job.base is not None and opened.base is not None:
        lines.append(_row("base", job.base, opened.base, opened.base_curvature, weight=""))
    curvatures: Sequence[Checkpoint | None] = opened.curvatures or [None] * len(opened.models)
    for (name, source), model, curvature in zip(job.models.items(), opened.models, curvatures, strict=True):
        lines.append(_row(name, source, model, curvature, weight=f"{source.weight:g}"))
    count = sum(entry.count for entry in opened.like.entries.values())
    lines += ["", f"{len(opened.like.entries)} tensors, {count:,} numbers; arithmetic in float32, dtypes kept."]
    return "\n".join(lines) + "\n"


def _row(name: str, source: Source, model: Checkpoint, curvature: Checkpoint | None, weight: str) -> str:
    if curvature is None:
        return f"| {name} | {model.path.name} | {weight} | | |"
    share = f"{curvature.path.name}, {len(curvature.entries)} tensors"
    return f"| {name} | {model.path.name} | {weight} | {source.n:g} | {share} |"
