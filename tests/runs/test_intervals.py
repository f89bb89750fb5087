"""Intervals of amounts: as wide as errors on rows not learnt from ask for, whatever the shape of the noise."""

import numpy as np
import pandas as pd
import pytest
import torch

import posterity as po
from posterity.learning.folds import OutOfFold
from posterity.runs.columns import Number
from posterity.runs.fitting import cross_validate, train
from posterity.runs.intervals import LEVELS, bounds, with_noise
from posterity.runs.predicting import predict_run
from posterity.runs.preprocessing import Examples
from posterity.runs.readers import read_rows
from posterity.runs.targets import Amount, Count
from runs.problems import line, plan


class Answer:
    """What bounds are asked about: a mean and a standard deviation."""

    mean, std = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]])


def test_bounds_are_the_gaussian_quantiles_where_factors_are_one():
    low, high = bounds(Answer(), 0.9, [1.0] * len(LEVELS))
    torch.testing.assert_close(high, Answer.mean + 1.6448536 * Answer.std)
    torch.testing.assert_close(Answer.mean - low, high - Answer.mean)


def test_the_noise_is_the_error_out_of_fold():
    targets, ids = torch.tensor([[0.0], [1.0]]), torch.arange(2)
    found = OutOfFold(torch.tensor([[0.5], [0.0]]), torch.zeros(2, 1), 1, 0.0, True)
    amounts, counts = Amount("y", 0.0, 1.0), Count("y")
    assert with_noise(amounts, Examples(targets, targets, ids), found).noise_precision == pytest.approx(1 / 0.625)
    assert with_noise(counts, Examples(targets, targets, ids), found) == "poisson"
    assert with_noise(amounts, Examples(targets, targets, ids), None) == "gaussian"


def test_intervals_of_a_run_follow_its_errors_out_of_fold(tmp_path):
    line(tmp_path / "line.csv")
    ready = cross_validate(plan(tmp_path / "run", tmp_path / "line.csv", target="y", method="ivon", test=None))
    run = train(ready)
    answer = po.predict(run.model(), run.posterior, ready.train.inputs, 32, seed=ready.config.seed)
    low, high = bounds(answer, 0.9, run.record.widths)
    errors = (ready.train.targets - ready.folds.outputs).abs()
    assert (errors <= (high - low) / 2 * (1 + 1e-6)).sum() == 55  # the 0.9 · (60 + 1)-th of 60 errors, rounded up
    table, _, _ = predict_run(run, read_rows(tmp_path / "line.csv"), samples=32)
    np.testing.assert_allclose(
        table["upper"] - table["lower"], run.preprocessing.target.scale * (high - low)[:, 0], rtol=1e-4
    )


def test_a_value_that_most_rows_have_leaves_bins_for_the_others():
    values = pd.Series([0.0] * 900 + list(range(1, 101)))
    edges = Number.of("gain", values.to_numpy(), True).edges
    assert (edges[0], edges[-1]) == (0, 100)
    np.testing.assert_array_less(np.diff(edges)[1:], 15)  # most of 21 bins share the hundred others
