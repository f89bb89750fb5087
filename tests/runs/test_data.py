"""Which rows of a file train and which test, whatever format it has, and what they are called."""

import pandas as pd
import pytest

from posterity.errors import InvalidInput
from posterity.runs.data import Data, DataSource


def data(path, frame, **about):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return Data(DataSource.of(path, path.parent), "y", **about)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
@pytest.mark.parametrize("value", ["1", "1.0"])
def test_held_out_by_a_number_in_a_column_with_gaps(tmp_path, name, value):
    frame = pd.DataFrame({"fold": [0, 1, None, 1], "y": [1, 2, 3, 4]})  # in JSON, 1 beside a gap is 1.0
    found = data(tmp_path / name, frame, test={"column": "fold", "value": value})
    assert found.select(tmp_path, "test").ids.tolist() == [1, 3]
    assert found.select(tmp_path, "train").ids.tolist() == [0, 2]


@pytest.mark.parametrize("first", [2**63, 2**65, -(2**65)])
def test_ids_that_are_too_large_are_refused(tmp_path, first):
    frame = pd.DataFrame({"number": [str(first + i) for i in range(3)], "y": [1, 2, 3]})
    with pytest.raises(InvalidInput, match="below"):
        data(tmp_path / "t.csv", frame, id_column="number").select(tmp_path, "train")
