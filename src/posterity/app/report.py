"""`write_report`: what a run learnt, how far to trust it and how it was made, on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posterity import __version__, metrics
from posterity.app.document import Alarm, Block, Card, Code, Picture, Section, document, shown
from posterity.app.judged import CLASSES, amount_figures, by_class, class_figures, confused, confusion
from posterity.app.source import Preview
from posterity.errors import require
from posterity.files import write_bytes
from posterity.runs.effects import Effect

Array = np.ndarray[Any, Any]
Previews = Callable[[int], Preview]
CARDS = 12
_WORDS = {"self_influence": "influence", "leverage": "leverage", "loo_nll": "loss when left out"}
FIGURES = {"nll": "log loss", "ece": "calibration error", "rmse": "RMSE"}  # as this page calls them
SEVERAL, _NOTHING = 3.0, 0.02  # ratio of two losses that disagree, and a loss that counts as none


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions of examples that training did not see.

    Args:
        ids: What a preview is asked for by, (N,).
        targets: Classes (N,) or numbers (N,).
        probs: Class probabilities (N, K) of a classifier.
        mean: Expected targets (N,) of a regression.
        std: Their standard deviations (N,), noise included.
        preview: An example for the eye, by id.
    """

    ids: Array
    targets: Array
    probs: Array | None = None
    mean: Array | None = None
    std: Array | None = None
    preview: Previews | None = None

    def __post_init__(self) -> None:
        whole = self.probs is not None or (self.mean is not None and self.std is not None)
        require(whole, "held-out predictions", "probs, or mean and std", "neither")

    @property
    def uncertainty(self) -> Array:
        """Predictive entropy, or standard deviation, of each example."""
        if self.probs is None:
            return np.asarray(self.std)
        return -(self.probs * np.log(np.clip(self.probs, 1e-30, None))).sum(-1)

    @property
    def losses(self) -> Array:
        """1 where the likeliest class is not the target, or the absolute error."""
        if self.probs is None:
            return np.abs(np.asarray(self.mean) - self.targets)
        return (self.probs.argmax(-1) != self.targets).astype(float)


@dataclass(frozen=True, eq=False)
class Contents:
    """What a run leaves for its report; what is missing is left out of the page.

    Args:
        title: Heading.
        lead: One sentence about what was learnt.
        facts: Data, network, method, seed ... by name.
        notes: What was unusual about the data.
        metrics: A row of numbers for each model.
        beside: Figures of plainer models on the same held-out rows.
        held_out: Predictions of examples that training did not see.
        memory: The table of a memory map of the training data.
        ranking: Its column that finds wrong labels best.
        preview: A training example for the eye, by id.
        class_names: Names of the classes.
        warning: Why sizes of estimated changes should be taken with care.
        effects: Effects of columns on predictions, the largest first.
        cost: Seconds, passes, bytes ... by name.
        reproduce: Commands or code that make this run again.
        more: Further sections, after those on memory.
    """

    title: str
    lead: str
    facts: Mapping[str, Any]
    notes: Sequence[str] = ()
    metrics: pd.DataFrame | None = None
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    held_out: HeldOut | None = None
    memory: pd.DataFrame | None = None
    ranking: str = "loo_nll"
    preview: Previews | None = None
    class_names: Sequence[str] | None = None
    warning: str = ""
    effects: Sequence[Effect] = ()
    cost: Mapping[str, Any] | None = None
    reproduce: str = ""
    more: Sequence[Section] = ()


def write_report(contents: Contents, path: str | Path) -> None:
    """Write the report of a run as one self-contained HTML file, atomically.

    Args:
        contents: What the run left.
        path: The file; it needs no other, and no network, to be read.
    """
    sections = [_learnt(contents)]
    if contents.held_out is not None:
        sections.append(_judged(contents.held_out, contents.beside))
        if contents.held_out.probs is not None:
            sections.append(_classes(contents.held_out, contents.held_out.probs, contents.class_names))
        sections.append(_trust(contents.held_out))
    if contents.effects:
        sections.append(_effects(contents.effects))
    if contents.held_out is not None:
        sections.append(_unsure(contents.held_out, contents.class_names))
    if contents.memory is not None:
        sections += _memory(contents, contents.memory)
    sections += contents.more
    if contents.cost:
        sections.append(Section("Cost", [_pairs(contents.cost)]))
    if contents.reproduce:
        sections.append(Section("Reproduce", [Code(contents.reproduce)]))
    page = document(
        contents.title, f"{contents.lead} {_verdict(contents)}".strip(), sections, f"posterity {__version__}"
    )
    write_bytes(path, page.encode())


def _verdict(contents: Contents) -> str:
    """The figures that a reader looks for first."""
    found, held, table = [], contents.held_out, contents.memory
    if held is not None:
        root = np.sqrt(np.mean(held.losses**2))
        figure = f"accuracy {1 - held.losses.mean():.1%}" if held.probs is not None else f"RMSE {shown(float(root))}"
        found.append(f"On {len(held.targets)} held-out rows: {figure}.")
    if table is not None and "suspected_label" in table:
        count = int(table["suspected_label"].notna().sum())
        likely = f"Labels that look wrong: {count} of {len(table)}."
        found.append(likely if "label_error" in table else f"Labels that the model does not predict: {count}.")
    return " ".join(found)


def _pairs(values: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({"": [shown(v) for v in values.values()]}, index=list(values))


def _learnt(contents: Contents) -> Section:
    blocks: list[Block] = [_pairs(contents.facts), *(f"Note: {note}." for note in contents.notes)]
    return Section("Data and training", blocks if contents.metrics is None else [*blocks, contents.metrics])


def _judged(held: HeldOut, beside: Mapping[str, Mapping[str, float]]) -> Section:
    n = len(held.targets)
    said = (
        f"On {n} held-out rows. Other rows of the same kind would give figures inside the intervals nine times in ten."
    )
    if held.probs is not None:
        table = class_figures(held.probs, held.targets)
    else:
        table = amount_figures(np.asarray(held.mean), np.asarray(held.std), held.targets)
    plainer = [
        f"A {name} on the same rows: {', '.join(f'{FIGURES.get(k, k)} {shown(v)}' for k, v in found.items())}."
        for name, found in beside.items()
    ]
    return Section("Accuracy", [said, table, *plainer])


def _classes(held: HeldOut, probs: Array, names: Sequence[str] | None) -> Section:
    """Which classes are taken for which."""
    known = [_name(names, k) for k in range(probs.shape[1])]
    if len(known) <= CLASSES:
        matrix: list[Block] = [
            "Counts of held-out rows: one line for each true class, one column for each predicted class.",
            confusion(probs, held.targets, known),
        ]
    else:
        matrix = ["The most frequent confusions:", confused(probs, held.targets, known)]
    return Section("Classes", [*matrix, by_class(probs, held.targets, known)])


def _effects(found: Sequence[Effect]) -> Section:
    from posterity import plots

    return Section(
        "Effects of the columns",
        [
            "The average prediction if one column had another value and the others did not change. It describes "
            "the model, not causes. Bands contain nine in ten draws of the weights.",
            Picture(plots.effects(found), f"The {len(found)} columns that move predictions most."),
        ],
    )


def _trust(held: HeldOut) -> Section:
    """Whether confidences are calibrated, and whether uncertainty finds the errors."""
    from posterity import plots

    curve = plots.risk_coverage({"by uncertainty": (held.uncertainty, held.losses)})
    tenth = metrics.selective_risk(held.uncertainty, held.losses, 0.9)
    loss = "error rate" if held.probs is not None else "mean absolute error"
    said = "{:.1%}".format if held.probs is not None else shown
    kept = f"The {loss} is {said(float(held.losses.mean()))}, "
    kept += f"and {said(float(tenth))} without the least certain tenth."
    if held.probs is not None:
        honest = Picture(
            plots.reliability(held.probs, held.targets),
            "Calibrated confidences lie on the diagonal. Vertical lines are 90 % intervals.",
        )
    else:
        honest = Picture(
            plots.interval_coverage(np.asarray(held.mean), np.asarray(held.std), held.targets),
            "Calibrated intervals lie on the diagonal: they contain as many targets as they state.",
        )
    return Section(
        "Calibration and uncertainty",
        [
            kept,
            honest,
            Picture(
                curve,
                "The loss of the most certain rows. If uncertainty finds the errors, it falls to the left.",
            ),
        ],
    )


def _unsure(held: HeldOut, names: Sequence[str] | None) -> Section:
    order = np.argsort(-held.uncertainty, kind="stable")[:CARDS]
    cards = []
    for row in order:
        if held.probs is not None:
            first, second = np.argsort(-held.probs[row])[:2]
            said = [f"{_name(names, k)} {held.probs[row, k]:.0%}" for k in (first, second)]
            lines = [" or ".join(said), f"labelled {_name(names, held.targets[row])}"]
        else:
            mean, std, truth = (shown(float(np.asarray(part)[row])) for part in (held.mean, held.std, held.targets))
            lines = [f"{mean} ± {std}", f"target {truth}"]
        example = int(held.ids[row])
        cards.append(Card(held.preview(example) if held.preview else None, [*lines, f"no. {example}"]))
    return Section("Most uncertain predictions", ["Held-out examples, the most uncertain first.", cards])


def _disagreement(estimated: float, measured: float, out_of_fold: float | None) -> list[Block]:
    """An alarm where the posterior's own estimate and the held-out loss differ several-fold."""
    low, high = sorted((estimated, measured))
    if high < SEVERAL * max(low, _NOTHING):
        return []
    if measured < estimated:
        cause = "training and held-out examples are not alike; check how the rows were split"
    else:
        cause = "the network has memorised its labels, and its leave-one-out figures cannot be trusted; "
        cause += (
            "train for fewer epochs"
            if out_of_fold is None
            else f"cross-validation measures {out_of_fold:.3g} on the training examples"
        )
    return [
        Alarm(f"Leave-one-out estimates a loss of {estimated:.3g}, held-out examples measure {measured:.3g}: {cause}.")
    ]


def _memory(contents: Contents, table: pd.DataFrame) -> list[Section]:
    """Leave-one-out, influential examples, suspected labels."""
    estimate = f"Training examples, each predicted as if it had been left out: mean loss {table['loo_nll'].mean():.4g}"
    if "loss" in table:
        estimate += f". The same examples after training on them: {table['loss'].mean():.4g}"
    blocks: list[Block] = []
    if contents.held_out is not None and contents.held_out.probs is not None:
        measured = metrics.nll(contents.held_out.probs, contents.held_out.targets)
        estimate += f". Held-out examples: {measured:.4g}"
        out_of_fold = float(table["out_of_fold_nll"].mean()) if "out_of_fold_nll" in table else None
        blocks += _disagreement(float(table["loo_nll"].mean()), measured, out_of_fold)
    blocks += [estimate + ".", *([f"Warning: {contents.warning}."] if contents.warning else [])]
    sections = [Section("Leave-one-out", blocks)]
    by = "self_influence" if "self_influence" in table else "leverage"
    sections.append(
        Section(
            "Most influential examples",
            [
                "Training examples without which the model would change most: the larger the influence, the more.",
                _cards(contents, table, by),
            ],
        )
    )
    if "suspected_label" in table and table["suspected_label"].notna().any():
        suspects = table[table["suspected_label"].notna()]
        if "label_error" in table:
            title = "Suspected labels"
            text = f"{len(suspects)} of {len(table)} training labels are more likely wrong than right."
        else:
            title = "Labels that the model does not predict"
            text = (
                f"For {len(suspects)} of {len(table)} training examples the model predicts another label if they are "
                "left out. Many of these labels may be right: only a run that cross-validates (`posterity fit`) "
                "estimates how likely each is wrong."
            )
        sections.append(Section(title, [text, _cards(contents, suspects, contents.ranking)]))
    return sections


def _cards(contents: Contents, table: pd.DataFrame, by: str) -> list[Card]:
    cards = []
    for row in table.sort_values(by, ascending=False, kind="stable").head(CARDS).to_dict("records"):
        label = row.get("label")
        lines = [f"labelled {_name(contents.class_names, label)}" if label is not None else ""]
        if pd.notna(row.get("suspected_label")):
            lines.append(f"looks like {_name(contents.class_names, row['suspected_label'])}")
        preview = contents.preview(int(row["id"])) if contents.preview else None
        cards.append(Card(preview, [*lines, f"no. {row['id']} · {_score(by, row[by])}"]))
    return cards


def _score(by: str, value: float) -> str:
    """A column of a memory map and its value, in words."""
    if by == "label_error":
        return f"wrong with probability {value:.0%}"
    return f"{_WORDS.get(by, by)} {value:.3g}"


def _name(names: Sequence[str] | None, label: Any) -> str:
    return names[int(label)] if names else shown(float(label) if isinstance(label, np.floating) else label)
