"""The card of a merged model: what was merged and how, for later readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from posterity import __version__
from posterity.checkpoints import Checkpoint
from posterity.merging._method import Method
from posterity.merging.job import MergeSource, Opened


def card(opened: Opened) -> str:
    """The card of merged checkpoints: the method, its options, and every source with its weight."""
    job, method = opened.job, opened.job.method
    settings = {"prior_precision": job.prior_precision, "temperature": job.temperature}
    rows = []
    if job.base is not None and opened.base is not None:
        rows.append(row("base", opened.base.path.name, "", *_known(job.base, opened.base_curvature)))
    curvatures: Sequence[Checkpoint | None] = opened.curvatures or [None] * len(opened.models)
    for (name, source), model, curvature in zip(job.models.items(), opened.models, curvatures, strict=True):
        rows.append(row(name, model.path.name, f"{source.weight:g}", *_known(source, curvature)))
    count = sum(entry.count for entry in opened.like.entries.values())
    note = f"{len(opened.like.entries)} tensors, {count:,} numbers; arithmetic in float32, dtypes kept."
    return page("Merged model", method, settings if method.needs_curvature else {}, rows, note)


def page(title: str, method: Method, settings: Mapping[str, float], rows: Sequence[str], note: str) -> str:
    """A page of Markdown."""
    lines = [f"# {title}", "", f"Merged by posterity {__version__}, method `{method.name}`.", ""]
    options = dataclasses.asdict(method)  # type: ignore[call-overload]  # all methods are dataclasses
    lines += [f"- {name}: {value}" for name, value in (options | dict(settings)).items()]
    lines += ["", "| model | source | weight | examples | curvature |", "|---|---|---|---|---|", *rows, "", note]
    return "\n".join(lines) + "\n"


def row(name: str, source: str, weight: str, examples: str = "", curvature: str = "") -> str:
    """One source of a merge."""
    return f"| {name} | {source} | {weight} | {examples} | {curvature} |"


def _known(source: MergeSource, curvature: Checkpoint | None) -> tuple[str, str]:
    """The number of examples of a model, and the source of its curvature."""
    if curvature is None:
        return "", ""
    return f"{source.examples(curvature):g}", f"{curvature.path.name}, {len(curvature.entries)} tensors"
