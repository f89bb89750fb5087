"""RealMLP or TabM of pytabkit on one cut of a table, run by the Python of an environment that has pytabkit.

`pytabkit_tables.py --pytabkit PYTHON` calls it: pytabkit needs packages that ours must not meet. It prints the classes
and the probabilities of the test rows as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings

import pandas as pd


def main(by: str, train: str, test: str, target: str, seed: int) -> None:
    """Fit with pytabkit's defaults, or with what it recommends for log loss, and print what it predicts."""
    from pytabkit import RealMLP_TD_Classifier, TabM_D_Classifier

    name, _, aim = by.partition(", ")
    kind = {"RealMLP": RealMLP_TD_Classifier, "TabM": TabM_D_Classifier}[name]
    recommended = {"val_metric_name": "cross_entropy"} | ({"use_ls": False} if name == "RealMLP" else {})
    tables = [pd.read_csv(path) for path in (train, test)]
    inputs = [table.drop(columns=target) for table in tables]
    words = [name for name in inputs[0] if inputs[0][name].dtype == object]
    numbers = [name for name in inputs[0] if name not in words]
    middle = inputs[0][numbers].median()  # pytabkit takes no missing numbers
    for part in inputs:
        part[words] = part[words].fillna("missing").astype(str)
        part[numbers] = part[numbers].astype(float).fillna(middle)
    model = kind(device="cpu", random_state=seed, n_threads=1, verbosity=0, **recommended if aim else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(inputs[0], tables[0][target], cat_col_names=words)
        probs = model.predict_proba(inputs[1])
    print("\n" + json.dumps({"classes": [str(name) for name in model.classes_], "probs": probs.tolist()}))


if __name__ == "__main__":
    main(*sys.argv[1:5], seed=int(sys.argv[5]))
