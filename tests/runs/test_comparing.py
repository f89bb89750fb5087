"""Two runs side by side, and what is wrong with one."""

import numpy as np
import pandas as pd
import pytest

from posterity.errors import InvalidInput
from posterity.runs import fitting
from posterity.runs.comparing import compare_runs
from posterity.runs.data import DataSource
from posterity.runs.doctor import examine
from runs.problems import line, plan, trained


def test_comparing(run, here, tmp_path):
    same = compare_runs(run, run)
    assert same.nll_change == 0
    assert same.rows == 30
    other = trained(tmp_path / "other", here / "flowers.csv", epochs=1, lr=0.001)
    found = compare_runs(other, run)
    change = run.predictions["nll"] - other.predictions["nll"]
    assert found.nll_change == pytest.approx(change.mean())
    assert found.standard_error == pytest.approx(change.std() / np.sqrt(30))
    assert "the second is better" in found.verdict
    assert found.settings["epochs"] == (1, 4)


def test_amounts_differ_by_an_amount(run, tmp_path):
    line(tmp_path / "line.csv")
    first, second = (trained(tmp_path / str(k), tmp_path / "line.csv", target="y", epochs=k) for k in (1, 4))
    mean = (first.predictions["mean"] - second.predictions["mean"]).abs().mean()
    assert compare_runs(first, second).difference == f"predictions differ by {mean:.4g} on average"
    assert compare_runs(run, run).difference == "0 predicted differently"


def test_comparing_pairs_the_same_rows(run, here, tmp_path):
    table = pd.read_csv(here / "flowers.csv")
    held_out = {"source": vars(DataSource.of(here / "flowers.csv", tmp_path))}
    made = []
    for rows in (60, 100):  # other training files, the same file to test with
        table.head(rows).to_csv(tmp_path / f"{rows}.csv", index=False)
        ready = plan(tmp_path / f"run {rows}", tmp_path / f"{rows}.csv", test=held_out)
        made.append(fitting.train(ready))
    found = compare_runs(*made)
    change = made[1].predictions["nll"] - made[0].predictions["nll"]  # row by row, in the order of the file
    assert found.rows == 150
    assert found.nll_change == pytest.approx(change.mean())
    with pytest.raises(InvalidInput, match="of the same file"):
        compare_runs(run, trained(tmp_path / "elsewhere", tmp_path / "60.csv"))


def test_the_doctor(here, tmp_path):
    noisy = {"ess": 1.0, "hess_init": 0.1, "prior": 0.1, "beta2": 0.99999}
    ill = trained(tmp_path / "a", here / "flowers.csv", epochs=1, lr=1e-4, options=noisy)
    found = {finding.name for finding in examine(ill)}
    assert {"ess", "noise", "hessian"} <= found
    advice = {finding.name: finding.remedy for finding in examine(ill)}
    assert advice["noise"] == "a larger --hess-init, more --epochs, or fewer weights"
    good = trained(tmp_path / "b", here / "flowers.csv", epochs=60, test=0.5)
    assert not {"ess", "noise", "hessian", "files", "data"} & {finding.name for finding in examine(good)}
    untested = trained(tmp_path / "c", here / "flowers.csv", test=0)
    assert "untested" in {finding.name for finding in examine(untested)}
    (tmp_path / "c" / "model.safetensors").write_bytes(b"damaged")
    assert [finding.name for finding in examine(untested)] == ["files"]
