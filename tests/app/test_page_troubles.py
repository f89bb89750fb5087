"""The page where things are wrong: texts that would like to be scripts, what is missing, no server at all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from app.pages import drag, eventually, model, visit
from posterity.app import Estimate, Preview, Source, serve, write_html
from posterity.app.document import Section
from posterity.app.report import Contents, write_report
from posterity.errors import RefusedFile

EVIL = '"><img src=x onerror="window.evil=1"><script>window.evil=1</script>'
TOP = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.45), (0.02, 0.45)]


def test_scripts_in_data_stay_texts(browser):
    table = pd.DataFrame(
        {"id": [0, 1], "label": [0, 1], "prediction": [1, 1], "error": [1.0, 0.2], "leverage": [0.5, 0.1]}
    )
    table["loo_prediction"] = table["prediction"]
    table["suspected_label"] = pd.array([1, None], dtype="Int64")
    estimate = Estimate(
        1, EVIL, 0.5, 0.4, warning=EVIL, moved=[{"id": 0, "label": 0, "before": 0, "after": 1, "loss_change": -1.0}]
    )
    source = Source(
        table,
        title=EVIL,
        classes=(EVIL, "fine"),
        kind="text",
        reliability=EVIL,
        preview=lambda i: Preview("text", EVIL) if i else Preview("row", {EVIL: {"value": EVIL, "z": None}}),
        what_if=lambda remove, relabel: estimate,
        test=pd.DataFrame({"id": [0], "label": [0], "prediction": [1], "loss": [0.5]}),
        test_preview=lambda i: Preview("text", EVIL),
        influences=lambda i, k: [(0, 0.1)],
        neighbours=lambda i, k: [(1, 0.5)],
        beside=table,
        beside_title=EVIL,
    )
    running = serve(source, browser=False, block=False)
    page = visit(browser, running.url)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("n")
    page.wait_for_selector(".close .card")
    page.keyboard.press("r")
    for key in "a234":
        page.keyboard.press(key)
    page.keyboard.press("w")
    page.wait_for_selector(".answer[data-change]")
    page.keyboard.press("4")
    page.locator("[data-test]").first.click()
    page.wait_for_selector(".influences .card")
    page.get_by_text("Compare").click()
    assert page.evaluate("() => window.evil") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == f"{EVIL} · Posterity"
    assert page.errors == []  # before the server stops: a page that is still asking it would see an error
    running.stop()


@pytest.mark.parametrize("state", ["#sort=tracked_self_influence", "#theme=blue", "#x=cook&y=beside.error&colour=cook"])
def test_an_address_of_another_map(browser, source, state):
    running = serve(Source(source.table, classes=source.classes), browser=False, block=False)
    page = visit(browser, running.url, state=state)
    assert page.locator(".sorry").count() == 0
    assert page.errors == []
    running.stop()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"loo_prediction": [5.5, -2.0]}, "Without it, the prediction would be 5.5."),
        ({}, "Unpredictable."),  # nobody asked the model without it
    ],
)
def test_what_is_said_of_numbers(browser, columns, said):
    table = pd.DataFrame({"id": [0, 1], "label": [1.0, 2.0], "prediction": [2.5, 2.0], "error": [1.5, 0.0]})
    table = table.assign(leverage=[0.1, 0.2], **columns)
    running = serve(Source(table, ranking="error"), browser=False, block=False)
    page = visit(browser, running.url)
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".detail .say")
    text = page.locator(".detail .say").inner_text()
    running.stop()
    assert text.endswith(said)
    assert "the same" not in text


def test_a_deleted_image_says_so(browser, source):
    def gone(i: int) -> Preview:
        raise FileNotFoundError(2, "No such file or directory", "/secret/place.png")

    running = serve(Source(source.table, kind="image", preview=gone), browser=False, block=False)
    page = visit(browser, running.url)
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".detail .gone")
    text = page.locator(".detail .gone").inner_text()
    running.stop()
    assert re.fullmatch(r"the file of example \d+ is gone", text)


def test_a_folder_that_is_no_run(browser, tmp_path):
    running = serve(tmp_path, browser=False, block=False)
    page = visit(browser, running.url)
    running.stop()
    assert "expected a run, got a folder without run.json" in page.locator(".sorry").inner_text()


def test_a_source_that_cannot_be_read(browser, monkeypatch):
    def refuse(what, options):
        raise_later = RefusedFile("data.csv: expected the data that the run was made from, got no such file")

        def load():
            raise raise_later

        return load

    monkeypatch.setattr("posterity.app._serve.loader", refuse)
    running = serve("run", browser=False, block=False)
    page = visit(browser, running.url)
    running.stop()
    assert "got no such file" in page.locator(".sorry").inner_text()


def test_one_file_without_a_server(browser, source, maps, tmp_path):
    path = write_html(source, tmp_path / "map.html", previews=50)
    page = visit(browser, path.as_uri())
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".detail img")
    drag(page, TOP)
    rows = model(page, "m.selection")
    page.keyboard.press("w")
    page.wait_for_selector(".answer[data-change]")
    effects = source.effects().set_index("id")["remove"]
    truth = effects.loc[maps[1].columns["id"].iloc[rows]].sum()
    assert float(page.locator(".answer").first.get_attribute("data-change")) == pytest.approx(truth, rel=1e-2, abs=1e-5)
    text = page.locator(".whatif").inner_text()
    assert "has no server" in text
    assert "sum of first-order effects" in text
    page.keyboard.press("4")
    page.locator("input[type=range]").evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    eventually(page, "window.posterity.view.epoch === 0")
    assert page.errors == []


PAYLOADS = [
    EVIL,
    "</script><script>window.evil=1</script>",
    "<!--<script>window.evil=1</script>",
    "' onmouseover='window.evil=1' x='",
    "<svg onload=window.evil=1>",
    "javascript:window.evil=1",
    "{{constructor.constructor('window.evil=1')()}}",
    "\u2028window.evil=1\u2029",
    "<style>@import 'http://evil.example/x.css'</style>",
]


def test_scripts_in_data_stay_texts_in_a_file_and_in_a_report(browser, tmp_path):
    """The same data in the two pages that people send to each other, opened in a real browser."""
    count = len(PAYLOADS)
    table = pd.DataFrame({"id": range(count), "label": range(count), "prediction": 0, "error": 0.5, "leverage": 0.5})
    table["suspected_label"] = pd.array([1] * count, dtype="Int64")
    shown = {text: {"value": text, "z": 1.0} for text in PAYLOADS}
    source = Source(
        table,
        title=PAYLOADS[1],
        classes=tuple(PAYLOADS),
        kind="text",
        reliability=PAYLOADS[1],
        preview=lambda i: Preview("text", PAYLOADS[i]) if i else Preview("row", shown),
    )
    write_html(source, tmp_path / "map.html")
    memory = table.assign(loo_nll=1.0, category="ordinary")
    facts = dict(zip(PAYLOADS, PAYLOADS, strict=True))
    write_report(
        Contents(
            PAYLOADS[1],
            PAYLOADS[1],
            facts,
            pd.DataFrame({text: [text] for text in PAYLOADS}),
            memory=memory,
            preview=source.preview,
            class_names=tuple(PAYLOADS),
            warning=PAYLOADS[1],
            cost=facts,
            reproduce="\n".join(PAYLOADS),
            more=[Section(text, [text]) for text in PAYLOADS],
        ),
        tmp_path / "report.html",
    )
    for name in ("map.html", "report.html"):
        page = browser.new_page()
        asked = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(f"file://{tmp_path / name}")
        if name == "map.html":
            page.wait_for_selector("html[data-drawn], .sorry")
            for key in ("ArrowDown", "ArrowDown", "r", "a"):
                page.keyboard.press(key)
        for text in page.locator("summary").all():
            text.click()
        assert page.evaluate("() => window.evil") is None
        assert page.evaluate("() => document.querySelectorAll('img[src=x], svg[onload], [onmouseover]').length") == 0
        assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
        page.close()


def test_the_file_executes_only_its_own_script(source, tmp_path):
    table = source.table.assign()
    evil = Source(
        table, title=EVIL, classes=(EVIL, *source.classes[1:]), kind="text", preview=lambda i: Preview("text", EVIL)
    )
    text = write_html(evil, tmp_path / "map.html", previews=3).read_text()
    assert EVIL not in text
    assert text.count("<script") == 5
    assert "unsafe" not in re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert json.loads(re.search(r'id="previews">(.*?)</script>', text)[1])
    assert Path(tmp_path / "map.html").stat().st_size < 400_000
