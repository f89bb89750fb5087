"""What predictions make of columns: a column that decides comes first, one that does not barely matters."""

import numpy as np
import pandas as pd

from posterity import plots
from posterity.runs.effects import effects
from runs.problems import trained


def written(path):
    random = np.random.default_rng(0)
    table = pd.DataFrame({"noise": random.normal(size=200), "size": random.uniform(0, 10, 200)})
    table["colour"] = random.choice(["red", "blue"], 200)
    table["y"] = np.where(table["size"] + 3 * (table["colour"] == "red") > 6, "big", "small")
    table["amount"] = 100 + 5 * table["size"]
    table.to_csv(path, index=False)


def test_effects_of_classes(tmp_path):
    written(tmp_path / "t.csv")
    pd.read_csv(tmp_path / "t.csv").drop(columns="amount").to_csv(tmp_path / "c.csv", index=False)
    found = effects(trained(tmp_path / "run", tmp_path / "c.csv", target="y", epochs=40))
    assert [effect.column for effect in found] == ["size", "colour", "noise"]
    size, colour = found[:2]
    assert size.outputs == ("big", "small")
    assert (np.diff(size.mean[:, 0]) > 0).all()
    assert set(colour.values) == {"red", "blue"}
    for effect in found:
        assert (effect.lower <= effect.mean).all()
        assert (effect.mean <= effect.upper).all()
        np.testing.assert_allclose(effect.mean.sum(1), 1)
    assert len(plots.effects(found).axes) == 3


def test_effects_of_amounts_are_in_their_units(tmp_path):
    written(tmp_path / "t.csv")
    run = trained(tmp_path / "run", tmp_path / "t.csv", target="amount", epochs=60)
    (first, *_) = effects(run)
    assert first.column in ("size", "y")
    assert 95 < first.mean.min() < first.mean.max() < 155
