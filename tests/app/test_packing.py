"""Columns as bytes: decoded by hand from the written format, values come back as closely as it promises."""

import json

import numpy as np
import pandas as pd
import pytest

from posterity.app.packing import bits, pack, rows_of

NUMPY = {"uint8": np.uint8, "uint16": np.uint16, "int32": np.int32, "float64": np.float64}


def unpack(data):
    """The format as the module's docstring tells it, read independently of the code that writes it."""
    length = int.from_bytes(data[:4], "little")
    header, body = json.loads(data[4 : 4 + length]), data[4 + length :]
    assert (4 + length) % 8 == 0
    columns = {}
    for entry in header["columns"]:
        if entry["kind"] == "range":
            columns[entry["name"]] = np.arange(header["rows"])
            continue
        codes = np.frombuffer(body, NUMPY[entry["dtype"]], header["rows"], entry["offset"]).astype(float)
        if entry["kind"] == "class":
            codes = np.where(codes == 0, np.nan, codes - 1)
        elif entry["kind"] == "log":
            values = entry["low"] * (entry["high"] / entry["low"]) ** ((codes - 2) / 65533)
            codes = np.select([codes == 0, codes == 1], [np.nan, 0.0], values)
        elif entry["kind"] == "linear":
            values = entry["low"] + (codes - 1) / 65534 * (entry["high"] - entry["low"])
            codes = np.where(codes == 0, np.nan, values)
        columns[entry["name"]] = codes
    return header, columns


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_positive_numbers_keep_their_relative_size(rng):
    values = np.exp(rng.uniform(-30, 3, 5000))
    _, found = unpack(pack(pd.DataFrame({"id": np.arange(5000), "error": values})))
    large = values > values.max() * 1e-15
    assert np.abs(found["error"] / values - 1)[large].max() < 3e-4
    np.testing.assert_array_equal(found["error"][~large], 0)


def test_signed_numbers_keep_their_place_in_the_range(rng):
    values = rng.normal(size=1000)
    _, found = unpack(pack(pd.DataFrame({"id": np.arange(1000), "margin": values})))
    assert np.abs(found["margin"] - values).max() <= np.ptp(values) / 65534


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0], [-3.0, -3.0], [np.nan, 1.0], [np.nan, np.nan], [0.0, 2.0]])
def test_odd_columns(values):
    _, found = unpack(pack(pd.DataFrame({"id": [0, 1], "x": values})))
    np.testing.assert_allclose(found["x"], values, rtol=1e-6)


def test_classes_and_missing_ones():
    table = pd.DataFrame({"id": [7, 3], "label": [0, 2], "suspected_label": pd.array([None, 1], dtype="Int64")})
    header, found = unpack(pack(table, ("a", "b", "<script>")))
    assert header["classes"][2] == "<script>"
    np.testing.assert_array_equal(found["id"], [7, 3])
    np.testing.assert_array_equal(found["label"], [0, 2])
    np.testing.assert_array_equal(found["suspected_label"], [np.nan, 1])


def test_large_ids_stay_exact():
    _, found = unpack(pack(pd.DataFrame({"id": [2**40 + 1, 5], "error": [0.1, 0.2]})))
    np.testing.assert_array_equal(found["id"], [2**40 + 1, 5])


def test_a_hundred_thousand_rows_stay_below_three_megabytes(rng):
    names = [
        "error",
        "leverage",
        "variance",
        "sensitivity",
        "self_influence",
        "relevance",
        "loss",
        "loo_nll",
        "tracked",
    ]
    table = pd.DataFrame({"id": np.arange(100_000), "label": rng.integers(0, 10, 100_000)})
    table = table.assign(prediction=table["label"], loo_prediction=table["label"], suspected_label=table["label"])
    table = table.assign(**{name: rng.exponential(size=100_000) for name in names})
    assert len(pack(table, tuple("0123456789"))) < 3_000_000


def test_masks(rng):
    mask = rng.random(1003) < 0.3
    np.testing.assert_array_equal(rows_of(bits(mask), 1003), np.flatnonzero(mask))
    assert len(bits(mask)) == 126
