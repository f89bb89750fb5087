"""`memory_map`: every training example by how wrong the model is about it and how much it decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from posterity.cells import escaped_table
from posterity.distributed import gather, largest, total
from posterity.errors import InvalidInput, expected, require, require_whole
from posterity.memory import store
from posterity.memory._dual import Dual
from posterity.memory._rows import columns
from posterity.memory.ids import places, unique
from posterity.memory.perturbation import Deflate, whether_to_deflate
from posterity.memory.reliability import Reliability
from posterity.memory.scores import influence, score, test_loss_direction
from posterity.memory.tracker import MemoryTracker
from posterity.memory.what_if import WhatIf, what_if
from posterity.posterior import FittedModel, Memory, Posterior
from posterity.trees import Tree

GUIDE = 0.9  # quantile of error and leverage beyond which an example is not regular
LIKELY = 0.5  # probability beyond which a label is taken for wrong
_RANKINGS = ("label_error", "tracked_self_influence", "loo_nll")


@dataclass(frozen=True, eq=False, repr=False)
class MemoryMap:
    """A table of training examples, and questions about them.

    Args:
        columns: What was computed; `table` shows it.
        reliability: How far to trust the sizes of estimated changes.
        posterior: The posterior.
        guides: Quantiles of (leverage, error) that part the categories.
        trained: Model, posterior and data, where they are given: questions beyond the table need them.
    """

    columns: pd.DataFrame
    reliability: Reliability
    posterior: Posterior
    guides: tuple[float, float] = (GUIDE, GUIDE)
    trained: FittedModel | None = field(default=None)

    def __repr__(self) -> str:
        counts = self.table["category"].value_counts()
        parts = ", ".join(f"{counts[name]} {name}" for name in counts.index)
        return f"MemoryMap({len(self)} examples: {parts}; {self.reliability})"

    def __len__(self) -> int:
        return len(self.columns)

    def _repr_html_(self) -> str:
        warning = self.reliability.warning or "sizes and rankings"
        summary = f"<p><b>Memory map</b> of {len(self)} examples; trust: {warning}</p>"
        return summary + self.top(10).to_html(index=False)

    @property
    def limits(self) -> tuple[float, float]:
        """Leverage and error at the guides."""
        leverage, error = self.guides
        return float(self.columns["leverage"].quantile(leverage)), float(self.columns["error"].quantile(error))

    @property
    def table(self) -> pd.DataFrame:
        """One row for each example.

        id, label, prediction; error ‖mean − y‖₂; leverage; variance tr V; sensitivity ‖mean without it − mean‖₁;
        self_influence eᵀVe; relevance tr Λ; loss; loo_nll and loo_prediction without the example; the scores asked
        for; what a tracker accumulated (tracked_...); category: "regular", "unpredictable" (error beyond its guide),
        "uncertain" (leverage beyond its guide) or "unpredictable and uncertain"; suspected_label: the label that the
        model without the example would give, where it is not the given one. Runs that were cross-validated add
        label_error, the probability that the label is wrong; suspected_label is then the suggestion where it is likely.
        """
        x, y = self.limits
        uncertain, unpredictable = self.columns["leverage"] > x, self.columns["error"] > y
        category = pd.Series("regular", index=self.columns.index)
        category[uncertain] = "uncertain"
        category[unpredictable] = "unpredictable"
        category[uncertain & unpredictable] = "unpredictable and uncertain"
        table = self.columns.assign(category=category)
        if self.posterior.likelihood.has_class_axis:
            judged = "label_error" in self.columns
            other = self.columns["label_error"] > LIKELY if judged else table["loo_prediction"] != table["label"]
            label = self.columns["suggested_label" if judged else "loo_prediction"]
            table["suspected_label"] = label.astype("Int64").where(other)
        return table

    def with_guides(self, leverage: float = GUIDE, error: float = GUIDE) -> MemoryMap:
        """The same map with its guides at other quantiles."""
        for name, q in (("leverage", leverage), ("error", error)):
            require(isinstance(q, Real) and 0 <= q <= 1, f"guide of {name}", "a quantile in [0, 1]", q)
        return replace(self, guides=(leverage, error))

    @property
    def ranking(self) -> str:
        """The column that finds wrong labels best: label_error, else accumulated self-influence, else loo_nll."""
        return next(name for name in _RANKINGS if name in self.columns)

    def top(self, k: int = 20, by: str | None = None, *, ascending: bool = False) -> pd.DataFrame:
        """The k examples with the largest (or smallest) values in a column; by default the likeliest label errors."""
        require_whole("k", k)
        return self._ranked(self.ranking if by is None else by, ascending).head(k)

    def what_if(
        self,
        *,
        remove: Iterable[int] = (),
        relabel: Mapping[int, Any] | None = None,
        reweight: Mapping[int, float] | None = None,
        deflate: Deflate = "auto",
        passes: int | str = "auto",
    ) -> WhatIf:
        """The estimated effect of other training data, without retraining.

        The first step is the memory-perturbation equation. Passes over the data then check it and carry it on.

        Args:
            remove: Ids of examples to leave out; a class is `m.table.query("label == 3")["id"]`.
            relabel: New targets by id.
            reweight: New weights by id; 1 is how they were trained with.
            deflate: Take the examples' curvature out of the covariance; "auto" where it is in there.
            passes: Largest number of passes over the data, or over 4096 examples of them; 0 for the equation alone,
                "auto" for as many as a few seconds allow, at most 200, and 0 for large models.

        Returns:
            The change of the weights, a verdict on it, and `on(test)`: the change of predictions and losses.
        """
        dimension = self.reliability.effective_dimension
        wishes: dict[str, Any] = {"remove": remove, "relabel": relabel, "reweight": reweight, "deflate": deflate}
        wishes["passes"] = passes
        return what_if(self._at_hand("what_if"), self._ids, dimension, **wishes)

    def influence(self, test: Any, *, batch_size: int = 256) -> pd.Series:
        """How the mean loss on test data would change without each example, to first order; indexed by id."""
        trained = self._at_hand("influence")
        with trained.at_mean():
            direction = test_loss_direction(trained, test, batch_size)
            index = pd.Index(self.columns["id"])
            values = np.full(len(index), np.nan)
            for batch in trained.batches("influence"):
                values[places(index, batch.ids)] = influence(trained, batch, direction).cpu().numpy()
        return pd.Series(values, index, name="influence")

    def memorable(self, k: int, *, per_class: bool = True, by: str = "relevance") -> Memory:
        """The examples to keep in mind: those with the largest tr Λ, near the decision boundary, as a `Memory`.

        Args:
            k: How many.
            per_class: As many of each class as possible (for classifications).
            by: Another column to choose by.
        """
        fits = isinstance(k, Integral) and 1 <= k <= len(self)
        require(fits, "k", f"an integer from 1 to {len(self)}", k)
        trained = self._at_hand("memorable")
        ranked = self._ranked(by)
        if per_class and self.posterior.likelihood.has_class_axis:
            place = ranked.groupby("label").cumcount()  # first the best of each class, then the second best, ...
            ranked = ranked.iloc[place.argsort(kind="stable")]
        rows = torch.as_tensor(ranked.index[:k].to_numpy(copy=True)).sort().values
        with trained.at_mean():
            chosen = trained.examples(self._ids[rows], rows)
            logits = [trained.outputs(batch.inputs) for batch in chosen]
        return store.memory_of(chosen, logits)

    def save(self, folder: str | Path) -> None:
        """Write the map and its posterior into a folder: safetensors and JSON, never pickle."""
        store.save(folder, self.columns, self.reliability, self.guides)
        self.posterior.save(Path(folder) / "posterior")

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None, data: Any = None) -> MemoryMap:
        """Read a map; with the model and the training data, `what_if` works again."""
        stored, reliability, guides = store.load(folder)
        posterior = Posterior.load(Path(folder) / "posterior")
        require((model is None) == (data is None), "model and data", "both or neither", "one of them")
        trained = None if model is None else FittedModel.of(model, posterior, data)
        return cls(stored, reliability, posterior, guides, trained)

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV; texts that a spreadsheet would run get an apostrophe in front."""
        escaped_table(self.table).to_csv(path, index=False)

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as parquet (needs pyarrow)."""
        store.to_parquet(self.table, path)

    def _ranked(self, by: str, ascending: bool = False) -> pd.DataFrame:
        table = self.table
        if not isinstance(by, str) or by not in table:
            raise expected("by", f"a column among {list(table)}", by)
        return table.sort_values(by, ascending=ascending, kind="stable")

    @property
    def _ids(self) -> Tensor:
        return torch.as_tensor(self.columns["id"].to_numpy(copy=True))

    def _at_hand(self, what: str) -> FittedModel:
        if self.trained is None:
            raise InvalidInput(
                f"{what}: expected the model and the data (MemoryMap.load(folder, model, data)), got none"
            )
        return self.trained


def memory_map(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    *,
    deflate: Deflate = "auto",
    scores: Sequence[str] = (),
    test: Any = None,
    tracker: MemoryTracker | None = None,
    batch_size: int = 256,
) -> MemoryMap:
    """A map of the training data: which examples influence the model, and which labels look wrong.

    Args:
        model: The network that the posterior belongs to. It is not changed.
        posterior: A Gaussian posterior (diagonal, Kronecker, full or last-layer), from any learner.
        data: The training data, with ids or in a fixed order; read batch by batch, never held as a whole.
        deflate: Take each example's curvature out of the covariance for leave-one-out; "auto" does so where the
            covariance contains it (dense matrices), and never for diagonal and Kronecker ones.
        scores: More columns: "margin", "self_confidence", "cook", "tracin", and "influence" with test data.
        test: Test data for "influence".
        tracker: What was accumulated during training, for the columns "tracked_...".
        batch_size: Examples at a time, where `data` is not a loader.

    Returns:
        A `MemoryMap`.

    Examples:
        >>> from posterity import laplace
        >>> x, y = torch.randn(30, 2), torch.randint(0, 2, (30,))
        >>> model = nn.Linear(2, 2)
        >>> m = memory_map(model, laplace(model, (x, y), prior_precision=1.0, structure="full"), (x, y))
        >>> len(m.top(3)), m.reliability.deflated
        (3, True)

    References:
        Nickl, Xu, Tailor, Möllenhoff and Khan, "The memory-perturbation equation", 2023.
    """
    require(not isinstance(scores, str), "scores", "a list of names", scores)
    fits = tracker is None or isinstance(tracker, MemoryTracker)
    require(fits, "tracker", "a MemoryTracker", type(tracker).__name__)
    for name in scores:
        if name != "influence":
            score(name)
    require(("influence" in scores) == (test is not None), "test", "test data exactly with scores='influence'", test)
    trained = FittedModel.of(model, posterior, data, batch_size)
    deflating = whether_to_deflate(deflate, posterior)
    parts, leverage, dimension = [], 0.0, 0.0
    with trained.at_mean():
        direction: Tree | None = None if test is None else test_loss_direction(trained, test, batch_size)
        for batch in trained.own_batches("memory map"):
            dual = Dual.of(trained, batch)
            parts.append(columns(trained, dual, batch, deflating, scores, direction))
            leverage = max(leverage, dual.max_leverage.max().item())
            dimension += dual.effective_parameters.sum().item()
    joined = {name: gather(torch.cat([part[name] for part in parts])) for name in parts[0]}
    leverage, dimension = largest(leverage), total(torch.tensor(dimension, dtype=torch.float64)).item()
    unique(joined["id"])
    table = pd.DataFrame({name: column.numpy() for name, column in joined.items()})
    if tracker is not None:
        table = table.merge(tracker.table.add_prefix("tracked_").rename(columns={"tracked_id": "id"}), on="id")
        require(len(table) == len(joined["id"]), "tracker", "the same examples as the data", f"{len(table)} of them")
    return MemoryMap(table, Reliability.of(posterior, leverage, dimension, deflating), posterior, trained=trained)
