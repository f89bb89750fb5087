"""Tables: `posterity fit` as it comes, beside scikit-learn, on public tables.

Classes: log loss, ECE (15 bins) and accuracy of logistic regression (standardised inputs), HistGradientBoosting as it
comes and calibrated (isotonic, five folds). Amounts: RMSE, NLL and the share of held-out amounts inside 90 % intervals.
A quarter of each table is held out, another in each cut. Nothing is tuned here: the network, its training and the
encoding of numbers were chosen on other tables (glass, Pima, penguins, Titanic, orange juice, attrition, cells, HMDA,
Chile, credit, HPC jobs, spam, churn, electricity, diamonds, wives' insurance, doctor visits of two studies, insurance
in Vietnam, flights, and rows of USPS, kin8nm and the power plant). Two tables that are reported were looked at too:
Adult, other cuts, for the bins of numbers and the folds and the schedule of long tables, and breast cancer with planted
labels for the weight decay. Tables come with scikit-learn and statsmodels, or lie in the
data folder; `--tables`, `--ways` and `--seeds` choose among them. With `--raw` a study that was stopped goes on where
it was, and `--collect` shows it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import report
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

from posterity import metrics
from posterity.cli import app

TARGET = "target"
OURS = "posterity fit"
CLASS_WAYS = ("logistic", "boosting", "boosting, calibrated", OURS)
AMOUNT_WAYS = ("Bayesian ridge", OURS)
Z = 1.6449


def bundled(load: Callable[..., Any]) -> pd.DataFrame:
    """A table of scikit-learn."""
    return load(as_frame=True).frame


def statsmodels(name: str, target: str, classes: Callable[[pd.Series], pd.Series]) -> pd.DataFrame:
    """A table of statsmodels, with a target made of one of its columns."""
    import statsmodels.api as sm

    table = getattr(sm.datasets, name).load_pandas().data.copy()
    return table.drop(columns=target).assign(**{TARGET: classes(table[target])})


def arrays(found: dict[str, np.ndarray], classes: Callable[[np.ndarray], np.ndarray] | None = None) -> pd.DataFrame:
    """Arrays X and y as a table."""
    table = pd.DataFrame(found["X"], columns=[f"x{i}" for i in range(found["X"].shape[1])])
    return table.assign(**{TARGET: found["y"] if classes is None else classes(found["y"])})


def adult(root: Path) -> pd.DataFrame:
    """Both splits of Adult."""
    table = pd.read_csv(root / "tabular" / "adult.csv.gz", skipinitialspace=True, na_values="?")
    return table.drop(columns="split").rename(columns={"income": TARGET})


CLASSES: dict[str, Callable[[Path], pd.DataFrame]] = {
    "iris": lambda _: bundled(load_iris),
    "wine": lambda _: bundled(load_wine),
    "breast cancer": lambda _: bundled(load_breast_cancer),
    "digits": lambda _: bundled(load_digits),
    "biopsies": lambda root: arrays(
        {**(found := datasets.tabular(root, "breast_cancer_scale")), "X": found["X"][:, 1:]}
    ),
    "australian": lambda root: arrays(datasets.tabular(root, "australian_scale")),
    "anes96": lambda _: statsmodels("anes96", "vote", lambda y: y),
    "boston, dear": lambda root: arrays(datasets.uci_regression(root, "boston"), lambda y: y > np.median(y)),
    "concrete, strong": lambda root: arrays(datasets.uci_regression(root, "concrete"), lambda y: y > np.median(y)),
    "wine quality": lambda root: arrays(datasets.uci_regression(root, "wine"), lambda y: y),
    "abalone, old": lambda root: arrays(datasets.tabular(root, "abalone_scale"), lambda y: y > 9),
    "banana": lambda root: arrays(datasets.tabular(root, "banana")),
    "fair": lambda _: statsmodels("fair", "affairs", lambda y: y > 0),
    "adult": adult,
}
AMOUNTS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "diabetes": lambda _: bundled(load_diabetes),
    "yacht": lambda root: arrays(datasets.uci_regression(root, "yacht")),
    "boston": lambda root: arrays(datasets.uci_regression(root, "boston")),
    "energy": lambda root: arrays(datasets.uci_regression(root, "energy")),
    "concrete": lambda root: arrays(datasets.uci_regression(root, "concrete")),
}


def table(name: str, root: str | None) -> pd.DataFrame:
    """A table with its target in a column of its own; classes are words."""
    found = {**CLASSES, **AMOUNTS}[name](datasets.folder(root)).dropna(subset=[TARGET]).reset_index(drop=True)
    if name in CLASSES:
        labels = pd.Categorical(found[TARGET].astype(str))
        counts = pd.Series(labels).value_counts()
        found[TARGET] = [f"class {label}" for label in labels]
        found = found[[counts[label] >= 20 for label in labels]]  # wine has qualities of ten bottles
    return found


def ours(train: pd.DataFrame, test: pd.DataFrame, task: str, seed: int) -> dict[str, float]:
    """`posterity fit`, without an option."""
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / part) for part in ("train.csv", "test.csv", "run")]
        train.to_csv(names[0], index=False)
        test.to_csv(names[1], index=False)
        words = ["fit", names[0], "--target", TARGET, "--test", names[1], "--out", names[2], "--json"]
        started = time.perf_counter()
        answer = CliRunner().invoke(app, [*words, "--task", task, "--seed", str(seed)], catch_exceptions=False)
        figures = json.loads(answer.stdout)["metrics"]
    return {**figures, "seconds": time.perf_counter() - started}


def prepared(train: pd.DataFrame, scale: bool) -> ColumnTransformer:
    """Numbers (perhaps standardised) and one-hot categories, missing values filled."""
    numeric = list(train.drop(columns=TARGET).select_dtypes("number"))
    words = [name for name in train if name not in (*numeric, TARGET)]
    numbers = make_pipeline(SimpleImputer(), StandardScaler()) if scale else SimpleImputer()
    levels = OneHotEncoder(handle_unknown="ignore", sparse_output=False, max_categories=100)
    return ColumnTransformer([("numbers", numbers, numeric), ("words", levels, words)])


def peer(by: str, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> dict[str, float]:
    """A classifier of scikit-learn."""
    boosted = HistGradientBoostingClassifier(random_state=seed)
    models = {
        "logistic": LogisticRegression(max_iter=3000),
        "boosting": boosted,
        "boosting, calibrated": CalibratedClassifierCV(boosted, method="isotonic", cv=5),
    }
    model = make_pipeline(prepared(train, scale=by == "logistic"), models[by])
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train.drop(columns=TARGET), train[TARGET])
        probs = model.predict_proba(test.drop(columns=TARGET))
    place = {label: k for k, label in enumerate(model.classes_)}
    p, y = torch.tensor(probs).clamp_min(1e-15), torch.tensor([place[label] for label in test[TARGET]])
    figures = {"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y), "ece": metrics.ece(p, y)}
    return {**figures, "seconds": time.perf_counter() - started}


def ridge(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Bayesian ridge regression, whose intervals are Gaussian too."""
    started = time.perf_counter()
    inputs = prepared(train, True).fit(train)
    model = BayesianRidge().fit(inputs.transform(train), train[TARGET])
    mean, std = model.predict(inputs.transform(test), return_std=True)
    y = test[TARGET].to_numpy()
    return {
        "rmse": metrics.rmse(mean, y),
        "nll": metrics.gaussian_nll(mean, std, y),
        "coverage": metrics.coverage(mean - Z * std, mean + Z * std, y),
        "seconds": time.perf_counter() - started,
    }


def answers(by: str, train: pd.DataFrame, test: pd.DataFrame, amount: bool, seed: int) -> dict[str, float]:
    """The figures of one way on one cut."""
    if by == OURS:
        return ours(train, test, "amount" if amount else "classes", seed)
    return ridge(train, test) if amount else peer(by, train, test, seed)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    """Every way on every cut of every table, without those that the raw file has already."""
    done = {(line["table"], line["seed"], line["by"]) for line in report.earlier(options.raw)}
    for seed in options.seeds:
        for name in options.tables:
            amount = name in AMOUNTS
            ways = [by for by in (AMOUNT_WAYS if amount else CLASS_WAYS) if by in options.ways]
            if all((name, seed, by) in done for by in ways):
                continue
            everything = table(name, options.data)
            groups = None if amount else everything[TARGET]
            train, test = train_test_split(everything, test_size=0.25, random_state=seed, stratify=groups)
            for by in ways:
                if (name, seed, by) not in done:
                    about = {"table": name, "rows": len(everything), "seed": seed, "by": by}
                    yield {**about, **answers(by, train, test, amount, seed)}


def whole_cuts(lines: list[report.Line]) -> list[report.Line]:
    """Without cuts that not every way has been run on, and without what was run twice."""
    found = {(line["table"], line["seed"], line["by"]): line for line in lines}
    ways = {by for _, _, by in found}
    wanted = {name: ways & set(AMOUNT_WAYS if name in AMOUNTS else CLASS_WAYS) for name, _, _ in found}
    return [line for (name, seed, _), line in found.items() if all((name, seed, by) in found for by in wanted[name])]


Cells = dict[tuple[str, str, str], str]  # by table, way and figure


def earlier_cells(out: str | None) -> Cells:
    """The cells of the page as it was, for a study that runs a part of it again."""
    path = Path(out or "") / "tables.md"
    found: Cells = {}
    figure, ways = "", []
    for line in path.read_text(encoding="utf-8").splitlines() if out and path.exists() else []:
        figure = next((name for name, title in _TITLES.items() if line == title), figure)
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if cells[:1] == ["table"]:
            ways = cells[3:]
        elif cells and cells[0] != "mean":
            found |= {(cells[0], by, figure): cell for by, cell in zip(ways, cells[3:]) if cell}
            found |= {(cells[0], what, ""): cell for what, cell in zip(("rows", "cuts"), cells[1:3])}
    return found


def cells_of(lines: list[report.Line]) -> Cells:
    """Mean and spread over cuts of every figure."""
    found: dict[tuple[str, str], list[report.Line]] = {}
    for line in lines:
        found.setdefault((line["table"], line["by"]), []).append(line)
    cells = {
        (name, by, figure): report.spread([line[figure] for line in some], 3)
        for (name, by), some in found.items()
        for figure in _TITLES
        if figure in some[0]
    }
    for (name, _), some in found.items():
        cells |= {(name, "rows", ""): str(some[0]["rows"]), (name, "cuts", ""): str(len(some))}
    return cells


def publish(lines: list[report.Line], out: str | None) -> None:
    lines = whole_cuts(lines)
    seeds = sorted({line["seed"] for line in lines})
    text = report.header("Tables: `posterity fit` beside scikit-learn", lines, cuts=seeds)
    new, old = cells_of(lines), earlier_cells(out)
    cells = old | new
    if any(key not in new for key in old):
        text += "\nWhat this command did not run again is from an earlier run with the same cuts.\n"
    for names, ways, figures in (
        (CLASSES, CLASS_WAYS, ("nll", "ece", "accuracy")),
        (AMOUNTS, AMOUNT_WAYS, ("rmse", "nll", "coverage")),
    ):
        here = [name for name in names if any(key[0] == name for key in cells)]
        for figure in figures if here else ():
            value = {key[:2]: float(cell.split()[0]) for key, cell in cells.items() if key[2] == figure}
            whole = [name for name in here if all((name, by) in value for by in ways)]
            shown = [
                [
                    name,
                    *(cells[name, what, ""] for what in ("rows", "cuts")),
                    *(cells.get((name, by, figure), "") for by in ways),
                ]
                for name in here
            ]
            shown.append(
                ["mean", "", "", *(f"{statistics.fmean(value[name, by] for name in whole):.3f}" for by in ways)]
            )
            text += f"\n{_TITLES[figure]}\n\n" + report.table(["table", "rows", "cuts", *ways], shown)
            if figure == "nll" and names is CLASSES:
                for by in ways[:-1]:
                    ahead = sum(value[name, ways[-1]] < value[name, by] for name in whole)
                    text += f"\n`posterity fit` has the lower log loss than {by} on {ahead} of {len(whole)} tables.\n"
    report.publish("tables", text, out)


_TITLES = {
    "nll": "Negative log-likelihood (log loss of classes), lower is better:",
    "ece": "ECE of the most probable class, 15 bins:",
    "accuracy": "Accuracy:",
    "rmse": "RMSE of amounts:",
    "coverage": "Share of held-out amounts inside 90 % intervals:",
}


def main() -> None:
    arguments = report.parser(__doc__)
    everything = [*CLASSES, *AMOUNTS]
    arguments.add_argument("--tables", nargs="+", choices=everything, default=everything)
    ways = list(dict.fromkeys([*CLASS_WAYS, *AMOUNT_WAYS]))
    arguments.add_argument("--ways", nargs="+", choices=ways, default=ways)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options.out)


if __name__ == "__main__":
    main()
