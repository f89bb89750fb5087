"""Small tables: how strong the prior of `posterity fit` should be, from thirty rows to three hundred.

Each table is cut into rows to learn from and all others, twice. NLL of the others, by the precision of the prior;
"default" is what `posterity fit` decides without options. Beside them scikit-learn: logistic regression with its
strength chosen by cross-validation, or Bayesian ridge regression. Energy needs the data folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import report
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from posterity.cli import app

BUNDLED = {
    "iris": load_iris,
    "wine": load_wine,
    "cancer": load_breast_cancer,
    "digits": load_digits,
    "diabetes": load_diabetes,
}
AMOUNTS = ("diabetes", "energy")  # the others have classes
SIZES = {
    "iris": (30, 100), "wine": (30, 100), "cancer": (30, 100, 300), "digits": (100, 300),
    "diabetes": (30, 100, 300), "energy": (30, 100, 300),
}  # fmt: skip
PRIORS = (0.3, 1.0, 3.0, 10.0, None)
TARGET = "target"


def table(name: str, root: str | None) -> pd.DataFrame:
    """A data set with its target in a column of its own."""
    if name in BUNDLED:
        found = BUNDLED[name](as_frame=True).frame
    else:
        arrays = datasets.uci_regression(datasets.folder(root), name)
        found = pd.DataFrame(arrays["X"], columns=[f"x{i}" for i in range(arrays["X"].shape[1])])
        found[TARGET] = arrays["y"]
    return (
        found if name in AMOUNTS else found.astype({TARGET: "string"}).replace({TARGET: {r"^": "class "}}, regex=True)
    )


def fitted(train: pd.DataFrame, test: pd.DataFrame, prior: float | None, seed: int) -> float:
    """NLL of `posterity fit` on the rows that it has not seen."""
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / part) for part in ("train.csv", "test.csv", "run")]
        train.to_csv(names[0], index=False)
        test.to_csv(names[1], index=False)
        asked = [] if prior is None else ["--prior", str(prior)]
        words = ["fit", names[0], "--target", TARGET, "--test", names[1], "--out", names[2], "--no-track", "--json"]
        answer = CliRunner().invoke(app, [*words, "--seed", str(seed), *asked], catch_exceptions=False)
    return float(json.loads(answer.stdout)["metrics"]["nll"])


def scikit_learn(train: pd.DataFrame, test: pd.DataFrame, amount: bool) -> float:
    """NLL of a linear model on the same rows."""
    (x, y), (x_test, y_test) = ((part.drop(columns=TARGET), part[TARGET]) for part in (train, test))
    if amount:
        model = make_pipeline(StandardScaler(), BayesianRidge()).fit(x, y)
        mean, deviation = model.predict(x_test, return_std=True)
        return float(-norm.logpdf(y_test, mean, deviation).mean())
    chosen = LogisticRegressionCV(
        scoring="neg_log_loss", cv=3, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False
    )
    model = make_pipeline(StandardScaler(), chosen).fit(x, y)
    return float(log_loss(y_test, model.predict_proba(x_test), labels=model.classes_))


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for name in options.tables:
        everything, amount = table(name, options.data), name in AMOUNTS
        for size in SIZES[name]:
            for seed in options.seeds:
                groups = None if amount else everything[TARGET]
                train, test = train_test_split(everything, train_size=size, random_state=seed, stratify=groups)
                about = {"table": name, "rows": size, "seed": seed}
                yield {**about, "by": "scikit-learn", "nll": scikit_learn(train, test, amount)}
                for prior in PRIORS:
                    by = "default" if prior is None else f"{prior:g}"
                    yield {**about, "by": by, "nll": fitted(train, test, prior, seed)}


def publish(lines: list[report.Line], out: str | None) -> None:
    ways = list(dict.fromkeys(line["by"] for line in lines))
    places = list(dict.fromkeys((line["table"], line["rows"]) for line in lines))
    found = {
        (place, by): [line["nll"] for line in lines if (line["table"], line["rows"]) == place and line["by"] == by]
        for place in places
        for by in ways
    }
    rows = [[*place, *(report.spread(found[place, by], 3) for by in ways)] for place in places]
    priors = [by for by in ways if by != "scikit-learn"]
    least = {place: min(statistics.mean(found[place, by]) for by in priors) for place in places}
    behind = [np.mean([statistics.mean(found[place, by]) - least[place] for place in places]) for by in priors]
    text = report.header("Prior of `posterity fit` on small tables: NLL of other rows", lines)
    text += "\n" + report.table(["table", "rows", *ways], rows)
    text += "\nHow far behind the best prior of each row, on average:\n\n"
    report.publish("table_prior", text + report.table(priors, [[f"{value:.3f}" for value in behind]]), out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--tables", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options.out)


if __name__ == "__main__":
    main()
