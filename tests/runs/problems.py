"""Small files of data, and runs made from them."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_iris

from posterity.runs.config import Config
from posterity.runs.data import Data, DataSource
from posterity.runs.fitting import train
from posterity.runs.planning import prepare


def flowers(path, rows=150):
    """Iris with a category, a missing value and words for classes."""
    frame = load_iris(as_frame=True)
    table = frame.data.copy()
    table.columns = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
    table["colour"] = np.where(table["petal_width"] > 1.5, "blue", "white")
    table["species"] = frame.target.map(dict(enumerate(frame.target_names)))
    table = table.sample(frac=1.0, random_state=0).head(rows).reset_index(drop=True)
    table.loc[3, "sepal_width"] = np.nan
    table.to_csv(path, index=False)
    return table


def plan(folder, path, target="species", test=0.2, **config):
    """A short training of a linear model."""
    settings = {"model": "linear", "epochs": 4, "batch_size": 32, "lr": 0.5, "samples": 8, **config}
    held_out = test if isinstance(test, dict) else {"fraction": test, "seed": 0} if test else {}
    return prepare(folder, Config(**settings), Data(DataSource.of(path, folder), target, test=held_out))


def trained(folder, path, **config):
    return train(plan(folder, path, **config))


def line(path, rows=60):
    """A regression."""
    x = np.linspace(-1, 1, rows)
    table = pd.DataFrame({"x": x, "y": 100 + 20 * x + np.sin(40 * x)})
    table.to_csv(path, index=False)
    return table


def bits(run):
    """The numbers of a run's posterior."""
    return {name: t.clone() for name, t in run.posterior.structure.tensors().items()}
