"""Columns as numbers, beside scikit-learn, and what happens to rows that training did not know."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, RobustScaler, StandardScaler

from posterity.errors import InvalidInput
from posterity.runs.columns import LEVELS, restore
from posterity.runs.inferring import counts_rows, infer
from posterity.runs.preprocessing import InputBlock, Preprocessing
from posterity.runs.readers import Rows, read_rows
from posterity.runs.targets import infer_target
from posterity.runs.written import numbers, read_numbers
from runs.problems import plan

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "cats and dogs and mats", "a log is not a mat at all"]


def table(n=80):
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(20, 60, n).astype(float),
            "job": random.choice(["nurse", "smith", "baker"], n),
            "since": pd.Series(pd.date_range("2020-01-01", periods=n)).dt.strftime("%Y-%m-%d"),
            "name": [f"person {i}" for i in range(n)],
            "same": "x",
            "rich": random.choice(["yes", "no"], n),
        }
    )


def encoded(column, values, notes=None):
    return column.encode(pd.Series(values), [] if notes is None else notes)


def test_numbers_as_scikit_learn_scales_them():
    values = pd.Series(np.random.default_rng(0).standard_t(2, 50))
    scaled = RobustScaler(unit_variance=True).fit_transform(values.to_numpy()[:, None])[:, 0]
    found = infer("x", values).encode(values, [])
    np.testing.assert_allclose(found[:, 0], scaled / np.sqrt(1 + (scaled / 3) ** 2), rtol=1e-4)
    assert np.abs(found[:, 0]).max() < 3 < np.abs(scaled).max()
    pair = pd.Series([0.0, 1.0, 1.0] * 10)
    wanted = StandardScaler().fit_transform(pair.to_numpy()[:, None])
    assert infer("x", pair).width == 1
    np.testing.assert_allclose(infer("x", pair).encode(pair, []), wanted / np.sqrt(1 + (wanted / 3) ** 2), rtol=1e-5)


def test_numbers_have_their_place_among_the_training_values():
    values = pd.Series(np.random.default_rng(0).exponential(size=400))
    column = infer("x", values)
    edges = KBinsDiscretizer(13, quantile_method="inverted_cdf").fit(values.to_numpy()[:, None]).bin_edges_[0]
    np.testing.assert_allclose(column.edges, edges)
    asked = np.array([-1.0, 0.3, 1.7, 50.0])
    places = [[np.interp(x, pair, (0, 1)) for pair in pairwise(edges)] for x in (*asked, *values)]
    np.testing.assert_allclose(encoded(column, asked)[:, 1:], places[:4] - np.mean(places[4:], 0), atol=1e-6)


def test_missing_numbers_are_filled_and_flagged():
    column = infer("x", pd.Series(["1", "2", None, "4"]))
    assert encoded(column, ["2", None])[:, 1].tolist() == [0, 1]
    median = encoded(column, ["2"])[0, 0]
    assert encoded(column, [None])[0, 0] == median
    notes = []
    encoded(column, ["many"], notes)
    assert "not numbers" in notes[0]


def test_numbers_without_squares_are_missing():
    column, notes = infer("x", pd.Series(["1", "2", "3", "1e300"])), []
    assert (column.flag, column.fill) == (True, 2.0)
    assert encoded(column, ["2", "1e300", "-1e200", "1e40"], notes)[:, 1].tolist() == [0, 1, 1, 1]
    assert "3 values are not numbers" in notes[0]
    with pytest.raises(InvalidInput, match=r"finite numbers .* got '1e200'"):
        Preprocessing.of(Rows(table(3).assign(w=["1", "1e200", "2"])), "w", task="amount")


def test_infinite_numbers_are_missing():
    column = infer("x", pd.Series(["1", "inf", "3", "-inf", "5"]))
    assert column.kind == "number"
    assert encoded(column, ["3", "inf"])[:, :2].tolist() == [[0, 0], [0, 1]]


def test_categories_as_scikit_learn_encodes_them():
    values = pd.Series(["b", "a", None, "c", "a"] * 3)
    wanted = OneHotEncoder(sparse_output=False).fit_transform(values.fillna("").to_numpy()[:, None])
    column = infer("x", values)
    np.testing.assert_array_equal(column.encode(values, []), wanted)
    notes = []
    assert encoded(column, ["z"], notes).sum() == 0
    assert "not seen in training ('z')" in notes[0]


def test_whole_numbers_are_the_same_category_in_every_format():
    column = infer("x", pd.Series(["1", "2", "none of these"] * 5))
    np.testing.assert_array_equal(encoded(column, ["1"]), encoded(column, [1.0]))
    np.testing.assert_array_equal(encoded(column, ["1"]), encoded(column, ["1.0"]))


def test_texts_as_scikit_learn_counts_them():
    column = infer("x", pd.Series(TEXTS), text=True)
    reference = TfidfVectorizer(vocabulary=list(column.words)).fit(TEXTS)
    wanted = reference.transform(TEXTS).toarray()
    np.testing.assert_allclose(encoded(column, TEXTS) / 4, wanted, rtol=1e-5, atol=1e-6)


def test_dates_are_days():
    column = infer("x", pd.Series(["2020-01-01", "2020-01-03", "2020-01-11"]))
    a, b, c = column.read(pd.Series(["2020-01-01", "2020-01-03", "2020-01-11"]))
    assert (a, b - a, c - b) == (18262, 2, 8)
    places = np.array([1, 0.5])  # behind the first two, half way to the third
    np.testing.assert_allclose(encoded(column, ["2020-01-07"])[0, 1:], places - [2 / 3, 1 / 3], rtol=1e-6)


def test_dates_and_truths_are_the_same_in_every_format(tmp_path):
    days, truths = ["2020-01-01", None, "2020-01-03", "2020-01-11"], [True, None, False, True]
    text = pd.DataFrame({"when": days, "paid": truths})
    typed = pd.DataFrame({"when": pd.to_datetime(days), "paid": pd.array(truths, dtype="boolean")})
    text.to_csv(tmp_path / "t.csv", index=False)
    text.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    typed.to_parquet(tmp_path / "t.parquet")
    read = {ending: read_rows(tmp_path / f"t.{ending}").table for ending in ("csv", "jsonl", "parquet")}
    for name, kind in (("when", "date"), ("paid", "category")):
        wanted = infer(name, read["csv"][name])
        assert wanted.kind == kind
        for found in read.values():
            assert infer(name, found[name]) == wanted
            np.testing.assert_array_equal(wanted.encode(found[name], []), wanted.encode(read["csv"][name], []))


def test_kinds_are_inferred():
    kinds = {name: infer(name, column).kind for name, column in table().items()}
    wanted = {"age": "number", "job": "category", "since": "date", "name": "ignored", "same": "ignored"}
    assert kinds == wanted | {"rich": "category"}
    many = infer("x", pd.Series([f"level {i % 150}" for i in range(6000)]))
    assert many.width == LEVELS
    long = [f"a review of {i} words or more, number {i}" for i in range(60)]
    assert infer("x", pd.Series(long)).kind == "text"


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["$1,234.00", "$5.50", "-$3", "($1,000.25)"], [1234.0, 5.5, -3.0, -1000.25]),
        (["12 %", "5%", "-0.5%", "100%"], [0.12, 0.05, -0.005, 1.0]),
        (["1,500", "2", "1,234,567", "12.25"], [1500, 2, 1234567, 12.25]),
        (["1.234,5", "0,125", "2", "€ 3,5"], [1234.5, 0.125, 2, 3.5]),
        (["1 234", "1\u202f234,5", "7 EUR", "0,5"], [1234, 1234.5, 7, 0.5]),
        (["1'234.5", "2e3", "−4", "+4"], [1234.5, 2000, -4, 4]),
    ],
)
def test_numbers_as_people_write_them(values, wanted):
    column, plain = infer("x", pd.Series(values)), infer("x", pd.Series(wanted, dtype=float))
    assert column.kind == "number"
    np.testing.assert_allclose(encoded(column, values), encoded(plain, wanted), rtol=1e-6)
    target = infer_target("y", pd.Series(values * 6), "amount", standardise=True)
    decoded = target.decode(target.encode(pd.Series(values)).squeeze(1).numpy())
    np.testing.assert_allclose(decoded, wanted, rtol=0, atol=2e-7 * np.abs(wanted).max())  # float32


@pytest.mark.parametrize("text", ["12,34,56", "1,2345", "$", "%", "(5", "--5", "1.2.3", "5 apples", "0,125"])
def test_what_is_no_number_in_english_is_not_made_one(text):
    assert np.isnan(numbers(pd.Series([text]))).all()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["12/31/2019", "1/2/2019"], ["2019-12-31", "2019-01-02"]),
        (["31/12/2019", "1/2/2019"], ["2019-12-31", "2019-02-01"]),
        (["31.12.19 12:00", "1.2.19 00:00"], ["2019-12-31 12:00", "2019-02-01"]),
        (["12/31/2019 3:05 PM", "1/2/2019 3:05 AM"], ["2019-12-31 15:05", "2019-01-02 03:05"]),
        (["Dec 31, 2019", "Jan 2, 2019"], ["2019-12-31", "2019-01-02"]),
        (["31-Dec-2019", "02-Jan-2019"], ["2019-12-31", "2019-01-02"]),
        (["2019/12/31", "2019/01/02"], ["2019-12-31", "2019-01-02"]),
    ],
)
def test_dates_as_people_write_them(values, wanted):
    column, iso = infer("x", pd.Series(values)), infer("x", pd.Series(wanted))
    assert (column.kind, iso.kind) == ("date", "date")
    np.testing.assert_array_equal(encoded(column, values), encoded(iso, wanted))
    assert restore(json.loads(json.dumps(column.settings()))) == column


def test_what_could_be_read_in_two_ways_is_remarked():
    dates, commas = pd.Series(["1/2/2019", "3/4/2019", "5/6/2019"]), pd.Series(["1,5", "2,25", "3"])
    assert "read as month, day, year" in infer("x", dates).remark(dates)
    assert infer("x", pd.Series(["1/2/2019", "1/13/2019"])).remark(pd.Series(["1/2/2019", "1/13/2019"])) is None
    assert "decimal signs" in infer("x", commas).remark(commas)


@pytest.mark.parametrize(
    ("values", "wanted", "unit"),
    [
        (["70,5 m²", "81,25 m²", "1.200 m²", None], [70.5, 81.25, 1200, np.nan], "m²"),
        (["12 kg", "15kg", "9.5 kg", "-3 kg"], [12, 15, 9.5, -3], "kg"),
        (["1 year", "2 years", "10 years"], [1, 2, 10], "year"),
        (["1,200 sq ft", "800 sq ft", "-"], [1200, 800, np.nan], "sq ft"),
        (["5°C", "-2.5°C", "11°C"], [5, -2.5, 11], "°C"),
    ],
)
def test_numbers_with_a_unit_are_numbers(values, wanted, unit):
    values = pd.Series(values, dtype=object)
    column, notes = infer("x", values), []
    assert (column.kind, column.unit) == ("number", unit)
    np.testing.assert_allclose(column.read(values), wanted)
    assert f"without their unit, {unit}" in column.remark(values)
    assert restore(json.loads(json.dumps(column.settings()))) == column
    later = pd.Series([f"7 {unit}", "7", "7 miles"])  # without a unit it is the usual one, with another it is unknown
    assert np.isnan(column.read(later)).tolist() == [False, False, True]
    column.encode(later, notes)
    assert "1 values are not numbers" in notes[0]


@pytest.mark.parametrize(
    "values", [["1A", "2B", "3C"], ["01067 Dresden", "04109 Dresden"], ["10:30", "11:45"], ["3rd", "4th", "5th"]]
)
def test_names_that_begin_with_digits_have_no_unit(values):
    column = infer("x", pd.Series(values * 20))
    assert (column.kind, column.remark(pd.Series(values * 20))) == ("category", None)


def test_several_units_are_named():
    few = pd.Series([f"{k} {unit}" for k in range(1, 8) for unit in ("g", "kg")] * 5)
    many = pd.Series([f"{k} {unit}" for k in range(1, 101) for unit in ("g", "kg", "kg")])
    column = infer("x", few)
    assert column.kind == "category"
    assert "several units (g, kg)" in column.remark(few)
    assert "several units (kg, g); write them in one unit" in infer("x", many).reason


def test_an_amount_with_a_unit_is_an_amount():
    values = pd.Series([f"{k},5 kg" for k in range(40)])
    target = infer_target("weight", values, None, standardise=True)
    assert (target.task, target.unit) == ("amount", "kg")
    assert "without their unit, kg; commas" in target.remark()
    np.testing.assert_allclose(target.decode(target.encode(values).numpy())[:, 0], np.arange(40) + 0.5, rtol=1e-6)


def test_dates_have_their_place_in_the_week_and_in_the_year():
    dates = pd.Series(pd.date_range("2020-01-01", periods=800)).dt.strftime("%Y-%m-%d")
    column = infer("x", dates)
    assert column.cycles == ("week", "year")
    rows = encoded(column, ["2020-01-01", "2020-01-08", None])[:, -4:]
    np.testing.assert_allclose(rows[0, :2], rows[1, :2], atol=1e-4)
    assert rows[2].tolist() == [0, 0, 0, 0]


def test_a_few_words_among_numbers_are_missing_ones():
    column, notes = infer("x", pd.Series([*map(str, range(59)), "-"])), []
    assert (column.kind, column.flag) == ("number", True)
    assert encoded(column, ["-", "7"], notes)[:, 1].tolist() == [1, 0]
    assert "1 values are not numbers" in notes[0]
    assert infer("x", pd.Series(["1", "2", "3+"] * 20)).kind == "category"
    often = pd.Series([*map(str, range(40)), *["-", "Unknown"] * 20])
    assert infer("x", often).encode(often, [])[:, 1].sum() == 40


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["1/2/2019", *(f"{1 + i % 28}.{1 + i // 28}.20" for i in range(60))], "dates such as 1/2/2019 in more"),
        (
            [*map(str, range(50)), *"abcdefghij"],
            "10 of 60 values are not numbers, such as 'a'; leave these cells empty",
        ),
        ([f"C{i}" for i in range(60)], "60 different values in 60 rows look like names"),
    ],
)
def test_what_nothing_is_made_of_comes_with_the_reason(values, why):
    column = infer("x", pd.Series(values))
    assert column.kind == "ignored"
    assert column.reason.startswith(why)


def test_columns_that_name_rows_are_left_out():
    numbers_of_rows = pd.Series([str(7 * i % 31) for i in range(31)])
    for name in ("id", "customer_id", "Customer ID", "customerID", "uuid"):
        assert infer(name, numbers_of_rows).kind == "ignored"
    for name in ("paid", "width", "humid"):
        assert infer(name, numbers_of_rows).kind == "number"
    assert infer("store_id", pd.Series(["1", "2", "3"] * 10)).kind == "number"


def test_copies_of_rows_do_not_make_an_id_a_number():
    ids = pd.Series([str(7 * k) for k in range(95)] + ["0"] * 5)
    for name in ("index", "MLS#"):
        column = infer(name, ids)
        assert column.kind == "ignored"
        assert "nearly every row" in column.reason
    assert infer("index", pd.Series([str(k // 2) for k in range(200)])).kind == "number"


def test_numbers_of_rows_are_not_learnt_from_unseen(tmp_path):
    table(30).to_csv(tmp_path / "t.csv")  # with the numbers of rows in a column without a name
    found = Preprocessing.of(read_rows(tmp_path / "t.csv"), "rich")
    assert (found.columns[0].name, found.columns[0].kind) == ("Unnamed: 0", "ignored")
    table(30).assign(number=range(7, 37)).to_csv(tmp_path / "t.csv", index=False)
    assert any("--ignore number" in note for note in plan(tmp_path / "run", tmp_path / "t.csv", target="rich").notes)
    assert counts_rows(pd.Series(["3", "4", "6", *map(str, range(7, 20))]))
    assert not counts_rows(pd.Series(["3", "4", "4", *map(str, range(7, 20))]))
    assert not counts_rows(pd.Series(np.linspace(0, 30, 20)))


def test_settings_survive_json_and_do_the_same():
    rows = Rows(table())
    before = Preprocessing.of(rows, "rich")
    after = Preprocessing.restored(json.loads(json.dumps(before.settings())))
    assert after == before
    assert torch.equal(before.inputs(rows, []), after.inputs(rows, []))
    assert (
        before.target.decode(before.target.encode(rows.table["rich"]).numpy()).tolist() == rows.table["rich"].tolist()
    )


def test_missing_columns_are_named():
    preprocessing = Preprocessing.of(Rows(table()), "rich")
    with pytest.raises(InvalidInput, match=r"got none named 'age'; add it"):
        preprocessing.inputs(Rows(table().drop(columns="age")), [])
    assert len(preprocessing.inputs(Rows(table().drop(columns=["name", "rich"]).assign(more=1)), [])) == 80


def test_targets():
    amount = Preprocessing.of(Rows(table()), "age").target
    assert amount.task == "amount"
    np.testing.assert_allclose(amount.decode(amount.encode(table()["age"]).numpy())[:, 0], table()["age"], rtol=1e-5)
    assert Preprocessing.of(Rows(table()), "age", task="count").target.likelihood == "poisson"
    with pytest.raises(InvalidInput, match="different values; choose another --target, or fewer classes"):
        Preprocessing.of(Rows(table()), "name")
    with pytest.raises(InvalidInput, match="different values; choose another --target, or --task amount"):
        Preprocessing.of(Rows(table()), "age", task="classes")
    with pytest.raises(InvalidInput, match="a column among"):
        Preprocessing.of(Rows(table()), "wealth")
    digits = Preprocessing.of(Rows(pd.DataFrame({"x": range(30), "y": ["10", "9", "2"] * 10})), "y").target
    assert digits.names == ("2", "9", "10")


@pytest.mark.parametrize("wrong", ["-1", "0.5"])
def test_counts_are_whole(wrong):
    values = pd.Series(["0", "3", wrong])
    with pytest.raises(InvalidInput, match=f"'n': expected counts 0, 1, 2, .*--task amount.* got '{wrong}'"):
        Preprocessing.of(Rows(table(3).assign(n=values)), "n", task="count")
    target = Preprocessing.of(Rows(table(2).assign(n=values[:2])), "n", task="count").target
    with pytest.raises(InvalidInput, match=rf"'n': expected counts 0, 1, 2, \.\.\., got '{wrong}'"):
        target.encode(values)
    assert target.encode(values[:2]).tolist() == [[0], [3]]
    assert target.knows(values).tolist() == [True, True, False]


def test_arrays_with_holes():
    block = np.array([[1.0, np.nan, np.inf], [3.0, np.nan, 5.0]])
    found = InputBlock.of(block, standardise=True)
    assert (found.offset, found.scale) == ((2.0, 0.0, 5.0), (1.0, 1.0, 1.0))
    assert found.encode(block, []).tolist() == [[-1, 0, 0], [1, 0, 0]]
    with pytest.raises(InvalidInput, match="real numbers"):
        InputBlock.of(np.ones((2, 3), dtype=complex), standardise=True)


def test_pictures_have_channels_first():
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (6, 8, 5, 3)).astype(np.uint8)
    block = InputBlock.of(pictures, standardise=True)
    found = block.encode(pictures, [])
    assert found.shape == (6, 3, 8, 5)
    np.testing.assert_allclose(found.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(found.std((0, 2, 3)), 1, atol=1e-4)
    with pytest.raises(InvalidInput, match="shape"):
        block.encode(pictures[:, :4], [])


def test_digits_with_a_zero_in_front_are_codes():
    codes = pd.Series(["01067", "10115", "80331"] * 20)
    assert infer("zip", codes).kind == "category"
    assert infer("count", codes.str.lstrip("0")).kind == "number"  # of different lengths
    assert infer("amount", pd.Series([f"{k:05d}" for k in range(90)])).kind == "number"  # too many for categories


@pytest.mark.parametrize("text", ["1e308", "1E+308", "1e308 kg", "2.5e200"])
def test_an_exponent_is_no_unit(text):
    found, decimal, unit = read_numbers(pd.Series([text] * 5))
    assert np.isnan(found).all()  # too large to be read
    assert (decimal, unit) == (".", "")
