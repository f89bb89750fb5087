"""Which method trains which model by default, and how it is set up."""

from __future__ import annotations

import pytest
from torch import nn

from posterity.learning.learners.variational import BUDGET, usual_budget
from posterity.runs.probing import cross_validate
from runs.problems import flowers, line, plan


def tiny(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0], 4), nn.Tanh(), nn.Linear(4, outputs))


FACTORY = f"{__name__}:tiny"


@pytest.mark.parametrize(
    ("model", "options", "method"),
    [
        ("tabular", {}, "variational"),
        ("mlp", {}, "variational"),
        (FACTORY, {}, "variational"),
        (FACTORY, {"hess_init": 1.0}, "ivon"),
        ("mlp", {"ess": 100.0}, "ivon"),
        ("linear", {}, "ivon"),
    ],
)
def test_the_method_of_a_model(tmp_path, model, options, method):
    flowers(tmp_path / "flowers.csv")
    made = plan(tmp_path / "run", tmp_path / "flowers.csv", model=model, options=options)
    assert made.config.method == method
    named = plan(tmp_path / "run", tmp_path / "flowers.csv", model=model, method="adamw", options=options)
    assert named.config.method == "adamw"


def test_easy_classes_get_less_noise(tmp_path):
    flowers(tmp_path / "flowers.csv")
    made = cross_validate(plan(tmp_path / "run", tmp_path / "flowers.csv", model=FACTORY, epochs=None, lr=None))
    assert made.folds is not None
    assert made.config.options["budget"] == usual_budget(made.folds.loss)
    assert made.config.options["budget"] <= BUDGET
    assert made.config.epochs is not None
    given = plan(tmp_path / "run", tmp_path / "flowers.csv", model=FACTORY, options={"budget": 0.2})
    assert cross_validate(given).config.options["budget"] == 0.2


def test_amounts_keep_the_usual_noise(tmp_path):
    line(tmp_path / "line.csv")
    made = cross_validate(plan(tmp_path / "run", tmp_path / "line.csv", target="y", model=FACTORY))
    assert "budget" not in made.config.options
