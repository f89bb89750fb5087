"""What is said about tables that mislead, and that nothing is said about others."""

import numpy as np
import pandas as pd

from runs.problems import flowers, plan


def written(path, **columns):
    random = np.random.default_rng(0)
    pd.DataFrame({"x": random.normal(size=300), "z": random.normal(size=300)} | columns).to_csv(path, index=False)
    return path


def notes(tmp_path, **columns):
    tmp_path.mkdir(exist_ok=True)
    return plan(tmp_path / "run", written(tmp_path / "t.csv", **columns), target="y").notes


def test_nothing_is_said_of_a_fair_table(tmp_path):
    table = flowers(tmp_path / "t.csv").drop_duplicates()
    table.to_csv(tmp_path / "t.csv", index=False)
    assert plan(tmp_path / "run", tmp_path / "t.csv").notes == []


def test_one_positive_in_three_hundred(tmp_path):
    for place in range(0, 300, 60):
        labels = ["no"] * 300
        labels[place] = "yes"
        path = written(tmp_path / "t.csv", y=labels)
        made = plan(tmp_path / "run", path, target="y", test={"fraction": 0.2, "seed": 0, "rare": True})
        assert made.train.targets.sum() == 1  # always learnt from, wherever chance would have put it
        assert any("'yes' 1" in note for note in made.notes)
        assert any("no held-out row is of class 'yes'" in note for note in made.notes)
        assert any("99.6% of the training rows are 'no'" in note for note in made.notes)


def test_rare_classes_are_shared_fairly(tmp_path):
    path = written(tmp_path / "t.csv", y=["a"] * 270 + ["b"] * 20 + ["c"] * 10)
    made = plan(tmp_path / "run", path, target="y", test={"fraction": 0.2, "seed": 3, "rare": True})
    assert made.test.targets.bincount()[1:].tolist() == [4, 2]


def test_rows_on_both_sides_of_the_split(tmp_path):
    values = np.random.default_rng(1).normal(size=30).repeat(10)
    said = notes(tmp_path, x=values, z=values, y=["a", "b", "c"] * 100)
    assert any("60 of 60 held-out rows (100%) are also among the training rows" in note for note in said)


def test_few_answers_are_alike_by_chance(tmp_path):
    random = np.random.default_rng(1)
    answers = {name: random.choice(["yes", "no"], 300) for name in "xzuv"}
    assert not any("also among the training rows" in note for note in notes(tmp_path, **answers, y=answers["u"]))


def test_dates_that_could_be_read_otherwise(tmp_path):
    said = notes(tmp_path, when=[f"{1 + i % 12}/{1 + i % 5}/2019" for i in range(300)], y=["a", "b"] * 150)
    assert any("read as month, day, year" in note for note in said)


def test_classes_that_differ_only_in_spelling(tmp_path):
    said = notes(tmp_path, y=["new york", "New York", "Boston"] * 100)
    assert "y: 'New York' and 'new york' differ only in spelling; if they are one class, correct the file" in said
    assert not any("spelling" in note for note in notes(tmp_path / "signs", y=["-1", "1", "+1"] * 100))


def test_a_copy_of_the_target(tmp_path):
    labels = ["a", "b", "c"] * 100
    said = notes(tmp_path, code=[{"a": "first", "b": "second", "c": "first"}[y] for y in labels], y=labels)
    assert not any("--ignore code" in note for note in said)
    said = notes(tmp_path / "copy", code=[y.upper() for y in labels], y=labels)
    assert (
        "code: each of its values goes with one y only; if it is not known before y, leave it out: --ignore code"
        in said
    )
