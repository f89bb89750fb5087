"""What the application shows of a `MemoryMap`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from posterity.adaptation.heads import find_head
from posterity.app.pictures import kind_of, previews, search
from posterity.app.questions import Questions, with_own_model
from posterity.app.source import Kind, Preview, Source
from posterity.batches import Batches
from posterity.errors import InvalidInput, require
from posterity.memory import MemoryMap

_NUMBERS = 50_000_000  # features of all examples together, up to which their principal components are computed


def from_map(
    m: MemoryMap,
    *,
    test: Any = None,
    examples: Any = None,
    test_examples: Any = None,
    title: str = "Memory map",
    history: pd.DataFrame | None = None,
    curves: pd.DataFrame | None = None,
    beside: MemoryMap | None = None,
    beside_title: str = "second run",
    outcome: pd.DataFrame | None = None,
    decisions: str | Path | None = None,
) -> Source:
    """Everything the browser can ask a memory map.

    Args:
        m: The map. With its model and data it supports what-if, neighbours and influences.
        test: Test data, (inputs, targets), a Dataset or a DataLoader: what estimates are measured on.
        examples: What to show of the training examples, in the order of the table: images (N, height, width[, 3]),
            texts, or a DataFrame. By default the inputs themselves.
        test_examples: The same of the test examples.
        title: Heading of the page.
        history: The memory at epochs of training: id, epoch, error, leverage.
        curves: Numbers by epoch: epoch, train, test, leave_one_out.
        beside: A second map of the same examples.
        beside_title: Its name.
        outcome: Predicted against actual change of test losses after adaptation: id, predicted, actual.
        decisions: CSV file in which marks are kept.

    Returns:
        A `Source` for `serve` and `write_html`.
    """
    table, classes = _table(m)
    table = table.assign(**_features(m))
    answers = Questions(with_own_model(m), test) if m.trained is not None else None
    tests = answers is not None and test is not None
    kind, preview = _previews(examples, None if m.trained is None else m.trained.data, len(table))
    rows = {int(i): row for row, i in enumerate(table["id"])}
    return Source(
        table,
        title=title,
        classes=classes,
        ranking=m.ranking,
        reliability=m.reliability.warning,
        kind=kind,
        preview=None if preview is None else lambda i: preview(rows[i]),
        search=search(examples) if examples is not None and kind_of(examples) != "image" else None,
        what_if=answers.what_if if answers else None,
        measure=answers.measure if answers else None,
        effects=answers.effects if answers and tests else None,
        neighbours=answers.neighbours if answers else None,
        test=answers.test if answers and tests else None,
        test_preview=_previews(test_examples, answers.stream, len(answers.test))[1] if answers and tests else None,
        influences=answers.influences if answers and tests else None,
        history=history,
        curves=curves,
        beside=None if beside is None else _table(beside)[0],
        beside_title=beside_title if beside is not None else "",
        outcome=outcome,
        decisions=None if decisions is None else Path(decisions),
    )


def _features(m: MemoryMap) -> dict[str, np.ndarray[Any, Any]]:
    """The first two principal components of what the last layer is given: close examples look alike to the model."""
    if m.trained is None or not m.trained.data.keeps_order:
        return {}
    first = m.trained.data.take(torch.tensor([0])).inputs
    head = find_head(m.trained.model, first)
    if head is None or head.layer.in_features < 2 or len(m.columns) * head.layer.in_features > _NUMBERS:
        return {}
    found = []
    with m.trained.at_mean():
        for batch in m.trained.batches("features"):
            try:
                seen = head.features(m.trained.model, batch.inputs, len(batch.ids)).cpu()
            except InvalidInput:  # several rows for each example: a sequence, or a map
                return {}
            found.append((batch.ids.cpu(), seen[:, : head.layer.in_features]))
    ids, features = (torch.cat(parts) for parts in zip(*found, strict=True))
    centred = features - features.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -2:].flip(1)
    directions = directions * directions.sum(0).sign()  # either sign is right; the same each time
    place = {int(i): row for row, i in enumerate(ids.tolist())}
    order = [place[int(i)] for i in m.columns["id"]]
    components = (centred @ directions)[order].numpy()
    return {"feature_1": components[:, 0], "feature_2": components[:, 1]}


def _table(m: MemoryMap) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns to show, and the names of the classes."""
    table, law = m.table.drop(columns="category"), m.posterior.likelihood
    if law.is_classification and not law.has_class_axis and "label" in table:
        table = table.astype({"label": np.int64})
        table["probability"] = table["prediction"]
        for name in ("prediction", "loo_prediction"):
            table[name] = (table[name] > 0.5).astype(np.int64)
        table["suspected_label"] = (
            table["loo_prediction"].astype("Int64").where(table["loo_prediction"] != table["label"])
        )
    if "label" not in table:  # several outputs: the first stands for all
        table = table.rename(columns={f"{name}_0": name for name in ("label", "prediction", "loo_prediction")})
    if not law.is_classification:
        return table, ()
    count = int(max(table["label"].max(), table["prediction"].max(), table["loo_prediction"].max())) + 1
    return table, m.posterior.class_names or tuple(str(k) for k in range(count))


def _previews(examples: Any, data: Batches | None, count: int) -> tuple[Kind, Callable[[int], Preview] | None]:
    """What previews are and how to get one by position: the given ones, or the inputs themselves."""
    if examples is not None:
        require(len(examples) == count, "examples", f"{count} of them, as in the table", len(examples))
        return kind_of(examples), previews(examples)
    if data is None or not data.keeps_order:
        return "", None
    first = data.take(torch.tensor([0])).inputs
    if not isinstance(first, torch.Tensor):
        return "", None
    if first.dim() in (3, 4):
        return "image", lambda row: previews(data.take(torch.tensor([row])).inputs.cpu().numpy())(0)
    if first.dim() == 2 and isinstance(data.source, tuple):
        return "row", previews(data.source[0].cpu().numpy())
    return "", None
