"""Intervals of amounts: as wide as errors on rows not learnt from ask for, whatever the shape of the noise."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import posterity as po
from posterity.learning.folds import OutOfFold, at_random
from posterity.runs.columns import Number
from posterity.runs.fitting import train
from posterity.runs.intervals import LEVELS, bounds, shrunk, widths, with_noise
from posterity.runs.predicting import predict_run
from posterity.runs.preprocessing import Examples
from posterity.runs.probing import cross_validate
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


class Twice(torch.nn.Module):
    """Predicts each target, and misses it by 0.1: targets are twice the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.slope * x + 0.1


def test_errors_of_the_folds_shrink_to_those_of_the_final_training():
    """Beside folds that miss every target by 0.4, a final training that misses by 0.1 has a quarter of their errors."""
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    train = Examples(x, 2 * x, torch.arange(40))
    found = OutOfFold(2 * x - 0.4, 2 * x, 1, 0.0, True)
    learnt_from = []

    def learn(some):
        learnt_from.append(some)
        return Twice()

    better = shrunk(found, train, 5, 7, learn)
    assert better.shrink == pytest.approx(0.25, rel=1e-5)
    assert better.noise_precision(train.targets) == pytest.approx(1 / 0.01, rel=1e-5)
    unseen = at_random(40, 5, torch.Generator().manual_seed(7)) == 0
    assert learnt_from[0].ids.tolist() == torch.arange(40)[~unseen].tolist()
    worse = OutOfFold(2 * x + 0.05, 2 * x, 1, 0.0, True)
    assert shrunk(worse, train, 5, 7, learn).shrink == 1


def test_a_run_of_the_default_network_has_narrower_intervals_than_its_folds_ask_for(tmp_path):
    line(tmp_path / "line.csv")
    ready = cross_validate(plan(tmp_path / "run", tmp_path / "line.csv", target="y", test=None, epochs=20))
    assert 0 < ready.folds.shrink <= 1
    run = train(ready)
    plain = replace(ready.folds, shrink=1.0)
    about = {"method": ready.config.prediction, "seed": ready.config.seed}
    wide = widths(run.model(), run.posterior, ready.train, ready.preprocessing.target, plain, **about)
    np.testing.assert_allclose(run.record.widths, ready.folds.shrink * np.array(wide), rtol=1e-5)


def test_a_value_that_most_rows_have_leaves_bins_for_the_others():
    values = pd.Series([0.0] * 900 + list(range(1, 101)))
    edges = Number.of("gain", values.to_numpy(), True).edges
    assert (edges[0], edges[-1]) == (0, 100)
    np.testing.assert_array_less(np.diff(edges)[1:], 15)  # most of 21 bins share the hundred others
