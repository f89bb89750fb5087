"""The report of a run: self-contained, complete, and harmless whatever the data say."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from posterity.app.document import Card, Code, Section, document, shown
from posterity.app.pictures import previews
from posterity.app.report import Contents, HeldOut, write_report
from posterity.app.source import Preview
from posterity.errors import InvalidInput

RNG = np.random.default_rng(0)
VOID = {"meta", "img", "br", "wbr"}


class Reader(HTMLParser):
    """Reads a page as a browser would: text, sources, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.words, self.sources, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def memory_table(n: int = 30) -> pd.DataFrame:
    table = pd.DataFrame({name: RNG.random(n) for name in ("loo_nll", "loss", "self_influence", "leverage")})
    table.insert(0, "id", range(n))
    table["label"] = RNG.integers(0, 3, n)
    table["suspected_label"] = pd.array([None] * (n - 2) + [1, 2], dtype="Int64")
    return table


def classifier() -> Contents:
    probs = RNG.dirichlet(np.ones(3), 40)
    images = RNG.random((40, 4, 4))
    return Contents(
        title="Beans",
        lead="Beans were learnt.",
        facts={"data": "beans.csv", "examples": 30},
        metrics=pd.DataFrame({"accuracy": [0.9]}, index=["IVON"]),
        held_out=HeldOut(np.arange(40), RNG.integers(0, 3, 40), probs=probs, preview=previews(images)),
        memory=memory_table(),
        preview=previews(images),
        class_names=("broad", "green", "<runner>"),
        cost={"seconds": 12.5},
        reproduce="posterity fit beans.csv --target kind",
    )


def test_the_report_of_a_classifier_says_everything(tmp_path):
    write_report(classifier(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = read(text)
    words = " ".join(page.words)
    for wanted in (
        "Beans were learnt.", "beans.csv", "accuracy", "90 % interval", "one line for each true class",
        "<runner>", "recall", "least certain tenth", "Most uncertain predictions", "Leave-one-out",
        "Most influential examples", "For 2 of 30 training examples", "Labels that the model does not predict: 2.",
        "labelled broad",
        "looks like <runner>", "12.5", "posterity fit beans.csv",
    ):  # fmt: skip
        assert wanted in words
    assert page.tags.count("figure") == 2
    assert page.tags.count("img") == 2 + 12 + 12 + 2


def test_nothing_is_loaded_and_nothing_runs(tmp_path):
    write_report(classifier(), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = read(text)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "default-src 'none'" in text
    assert "@media print" in text
    assert "viewport" in text


def test_the_report_of_a_regression_draws_its_intervals(tmp_path):
    mean, std = RNG.normal(size=50), np.full(50, 0.5)
    mean[7], std[7] = 51_234.5, 2.0
    held = HeldOut(np.arange(50), mean + 0.5 * RNG.normal(size=50), mean=mean, std=std)
    table = memory_table().drop(columns=["suspected_label"])
    write_report(Contents("Rates", "Rates were learnt.", {}, held_out=held, memory=table), tmp_path / "r.html")
    words = " ".join(read((tmp_path / "r.html").read_text(encoding="utf-8")).words)
    assert "The mean absolute error is" in words
    assert "51,234 ± 2" in words
    rmse = np.sqrt(np.mean((held.targets - mean) ** 2))
    assert f"On 50 held-out rows: RMSE {shown(float(rmse))}." in words
    assert "Calibrated intervals" in words
    assert "Suspected labels" not in words


def test_texts_have_long_lines_and_figures_short_ones_on_every_screen_and_on_paper(browser, tmp_path):
    texts = previews(["the colour sense of a tale told by nobody " * 4] * 40)
    found = replace(classifier(), preview=texts, memory=memory_table().assign(label_error=0.7))
    write_report(replace(found, held_out=replace(found.held_out, preview=texts)), tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.goto((tmp_path / "report.html").as_uri())
    first, second = (page.locator("figure").nth(k).bounding_box() for k in range(2))
    assert first["y"] == second["y"]  # side by side
    words = page.locator("main").inner_text()
    assert "Labels that look wrong: 2 of 30." in words
    assert "2 of 30 training labels are more likely wrong than right." in words
    for width, media in ((1100, "screen"), (400, "screen"), (680, "print")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(media=media)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.locator(".card").first.bounding_box()["width"] > 180
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.get_by_role("cell", name=" to ").first.bounding_box()["height"] < 60


def test_notes_and_the_plain_model_are_shown(tmp_path):
    beside = {"logistic regression": {"accuracy": 0.75, "nll": 0.5}}
    told = replace(classifier(), notes=["kind: few of some"], beside=beside)
    write_report(told, tmp_path / "r.html")
    words = " ".join(read((tmp_path / "r.html").read_text(encoding="utf-8")).words)
    assert "Note: kind: few of some." in words
    assert "A logistic regression on the same rows: accuracy 0.75, log loss 0.5." in words


def test_what_is_missing_is_left_out(tmp_path):
    write_report(Contents("Empty", "Nothing yet.", {"rows": 0}), tmp_path / "r.html")
    assert read((tmp_path / "r.html").read_text(encoding="utf-8")).tags.count("section") == 1


@pytest.mark.parametrize("nasty", ["<script>alert(1)</script>", "' onerror='alert(1)", "a & b"])
def test_data_cannot_become_markup(nasty):
    row = Preview("row", {nasty: {"value": nasty, "z": 1.0}})
    blocks = [
        nasty,
        pd.DataFrame({nasty: [nasty]}),
        Code(nasty),
        [Card(Preview("text", nasty), [nasty]), Card(row, [])],
    ]
    page = read(document(nasty, nasty, [Section(nasty, blocks)]))
    assert "script" not in page.tags
    assert page.words.count(nasty) == 12  # title, heading, lead, section and every block, as text


def test_rows_of_a_table_are_shown_as_a_table():
    cells = {f"column_{k}.part": {"value": float(k), "z": float(k)} for k in range(9)}
    cards = [Card(Preview("row", cells), [f"labelled {k}", "", f"no. {k}"]) for k in range(3)]
    text = document("t", "t", [Section("Rows", [cards])])
    page = read(text)
    assert page.tags.count("table") == 1
    assert page.tags.count("tr") == 4
    assert "column_<wbr>8.<wbr>part" in text  # may be broken there, and nowhere else
    words = " ".join(page.words)
    assert "column_ 2." not in words  # six of nine, the most unusual
    assert "and 3 other columns" in words
    assert "labelled 1" in words


def test_predictions_need_a_distribution():
    with pytest.raises(InvalidInput, match="probs, or mean and std"):
        HeldOut(np.arange(2), np.zeros(2), mean=np.zeros(2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12345.6, "12,346"),
        (1e30, "1e+30"),
        (7, "7"),
        (float("nan"), ""),
        (None, ""),
        (pd.NA, ""),
        ("x", "x"),
    ],
)
def test_numbers_are_short(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    ("loo", "alarm"),
    [(0.03, "has memorised its labels"), (1.1, ""), (30.0, "training and held-out examples are not alike")],
)
def test_losses_that_disagree_several_fold_are_said_in_red(tmp_path, monkeypatch, loo, alarm):
    """Three classes at random: the held-out loss is about log 3."""
    monkeypatch.setattr("posterity.app.document._picture", lambda picture: "")  # drawn by other tests
    table = memory_table().assign(loo_nll=loo)
    held = HeldOut(np.arange(40), RNG.integers(0, 3, 40), probs=np.full((40, 3), 1 / 3))
    write_report(Contents("Beans", "", {}, held_out=held, memory=table), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ('class="alarm"' in text) == bool(alarm)
    assert alarm in text
    write_report(Contents("B", "", {}, held_out=held, memory=table.assign(out_of_fold_nll=0.9)), tmp_path / "r.html")
    measured = "cross-validation measures 0.9 on the training" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert measured == (loo == 0.03)  # the length was chosen by it: fewer epochs would not help
