"""Decisions survive: second pages, servers that go away, undo, and names that look like nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pandas as pd
import pytest

from app.pages import eventually, model, visit
from app.raw import Raw
from posterity.app import Source, decisions, serve, write_html
from posterity.errors import InvalidInput, RefusedFile
from posterity.files import one_at_a_time


@pytest.fixture
def keeping(tmp_path):
    """A server of forty examples that keeps decisions, and the file."""
    count = 40
    table = pd.DataFrame({"id": range(100, 100 + count), "label": 0, "prediction": 0, "leverage": 0.5})
    table["error"] = [k / count for k in range(count)]
    path = tmp_path / "decisions.csv"
    running = serve(Source(table, classes=("None", "NA"), ranking="error", decisions=path), browser=False, block=False)
    yield running, path
    running.stop()


def told(raw, *words):
    status, _, content = raw.post("/api/decisions", json.dumps({"decisions": words}).encode())
    assert status == 200, content
    return json.loads(content)


def test_each_page_adds_to_what_others_decided(keeping):
    running, path = keeping
    raw = Raw(running.url)
    told(raw, {"id": 103, "decision": "drop"}, {"id": 101, "decision": "keep"})
    answer = told(raw, {"id": 102, "decision": "relabel", "label": "NA"}, {"id": 101, "decision": "clear"})
    assert answer["kept"] == "decisions.csv"
    assert path.read_text() == "id,decision,label\n102,relabel,NA\n103,drop,\n"
    assert [one["id"] for one in answer["decisions"]] == [102, 103]


def test_many_at_once(keeping):
    running, path = keeping
    raw = Raw(running.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: told(raw, {"id": 100 + k, "decision": "drop"}), range(40)))
    assert [one["id"] for one in decisions.read(path, {100 + k: k for k in range(40)})] == list(range(100, 140))


def test_two_servers_lose_nothing_that_they_answered(keeping, tmp_path):
    running, path = keeping
    table = pd.DataFrame({"id": range(100, 140), "label": 0, "prediction": 0, "error": 0.5, "leverage": 0.5})
    other = serve(Source(table, classes=("None", "NA"), ranking="error", decisions=path), browser=False, block=False)
    raws = [Raw(running.url), Raw(other.url)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: told(raws[k % 2], {"id": 100 + k, "decision": "drop"}), range(40)))
    other.stop()
    assert [one["id"] for one in decisions.read(path, {100 + k: k for k in range(40)})] == list(range(100, 140))
    assert [file.name for file in tmp_path.iterdir()] == ["decisions.csv"]


def test_a_server_does_not_wait_for_ever_for_another(keeping, monkeypatch):
    running, path = keeping
    monkeypatch.setattr("posterity.app.server.WAIT", 0.05)
    with one_at_a_time(path.parent):
        status, _, content = Raw(running.url).post(
            "/api/decisions", b'{"decisions": [{"id": 100, "decision": "drop"}]}'
        )
    assert status == 500
    assert "another process is writing there" in json.loads(content)["error"]


@pytest.mark.parametrize("label", ["\ud800", "a\0b", "two\nlines", "\x1b[2J", "x" * 7_000_000], ids=str.__len__)
def test_labels_that_cannot_be_a_class_are_refused(keeping, label):
    running, path = keeping
    body = json.dumps({"decisions": [{"id": 100, "decision": "relabel", "label": label}]}).encode()
    status, _, content = Raw(running.url).post("/api/decisions", body)
    assert status in (413, 422), content
    assert len(content) < 300
    assert not path.exists()


def test_a_label_is_answered_as_it_is_kept(keeping):
    running, path = keeping
    answer = told(Raw(running.url), {"id": 100, "decision": "relabel", "label": " a "})
    assert answer["decisions"] == decisions.read(path, {100: 0})
    assert answer["decisions"][0]["label"] == "a"
    with pytest.raises(InvalidInput, match="label of 100: expected one for relabel"):
        decisions.checked([{"id": 100, "decision": "relabel", "label": " "}], {100: 0})


@pytest.mark.parametrize("number", ["²", "--3", "9" * 5000], ids=len)
def test_a_file_with_an_id_that_is_no_number_is_named(keeping, number):
    running, path = keeping
    path.write_text(f"id,decision,label\n{number},drop,\n")
    body = b'{"decisions": [{"id": 100, "decision": "drop"}]}'
    status, _, content = Raw(running.url).post("/api/decisions", body)
    assert status == 422
    assert "decisions.csv, line 2: expected a whole number below 2^63 as id" in json.loads(content)["error"]


def test_a_file_in_which_all_was_taken_back(keeping):
    running, path = keeping
    raw = Raw(running.url)
    told(raw, {"id": 103, "decision": "drop"})
    told(raw, {"id": 103, "decision": "clear"})
    assert path.read_text() == "id,decision,label\n"
    assert raw("/api/columns")[0] == 200


def test_a_file_that_pandas_wrote_again(tmp_path):
    frame = pd.DataFrame({"id": [0, 1], "decision": ["relabel", "keep"], "label": [1, None]})
    frame.to_csv(tmp_path / "d.csv", index=False)  # 1.0, since the other row has no label
    for classes, label in ((("0", "1"), "1"), (("0.0", "1.0"), "1.0"), (("1", "1.0"), "1.0"), ((), "1.0")):
        found = {one["id"]: one for one in decisions.read(tmp_path / "d.csv", {0: 0, 1: 1}, classes)}
        assert found[0]["label"] == label
    table = pd.DataFrame({"id": [0, 1], "label": 0, "prediction": 0, "error": 0.1, "leverage": 0.1})
    running = serve(Source(table, classes=("0", "1"), decisions=tmp_path / "d.csv"), browser=False, block=False)
    answer = told(Raw(running.url), {"id": 1, "decision": "drop"})
    running.stop()
    assert [one["label"] for one in answer["decisions"]] == ["1", ""]


def test_a_file_that_cannot_be_written(tmp_path):
    table = pd.DataFrame({"id": [0], "label": [0], "prediction": [0], "error": [0.1], "leverage": [0.1]})
    running = serve(Source(table, decisions=tmp_path / "gone" / "d.csv"), browser=False, block=False)
    status, _, content = Raw(running.url).post("/api/decisions", b'{"decisions": [{"id": 0, "decision": "drop"}]}')
    running.stop()
    assert status == 500
    assert json.loads(content)["error"] == "d.csv cannot be written: No such file or directory"


@pytest.mark.parametrize(
    "label", ["None", "NA", "nan", "?", 'a "b", c', "two\nlines", "007", "1.0", "é漢字🙂", "<b>", "=1+1", "'=1", "-1"]
)
def test_names_are_read_as_they_were_written(tmp_path, label):
    kept = decisions.checked([{"id": 3, "decision": "relabel", "label": label}], {3: 0}, classes=[label])
    decisions.write(tmp_path / "d.csv", kept)
    assert decisions.read(tmp_path / "d.csv", {3: 0}, [label]) == kept


def test_decisions_about_others_are_refused_by_name(tmp_path):
    (tmp_path / "d.csv").write_text("id,decision\n3,drop\n4,keep\n")
    with pytest.raises(RefusedFile, match=r"d\.csv: expected decisions about examples of the map, got one about 4;"):
        decisions.read(tmp_path / "d.csv", {3: 0})


def test_a_label_is_a_text():
    with pytest.raises(InvalidInput, match="label of 3: expected a text"):
        decisions.checked([{"id": 3, "decision": "relabel", "label": {"a": 1}}], {3: 0})


def test_two_pages(browser, keeping):
    running, path = keeping
    one = visit(browser, running.url)
    other = visit(browser, running.url)
    for page, row in ((one, 5), (other, 7), (one, 9)):
        page.evaluate(f"() => posterity.mark([{row}], 'drop')")
        eventually(page, "posterity.unsaved.size === 0")
    assert path.read_text() == "id,decision,label\n105,drop,\n107,drop,\n109,drop,\n"
    assert model(one, "[...m.marks.keys()]") == [5, 7, 9]
    one.keyboard.press("u")
    eventually(one, "posterity.unsaved.size === 0 && posterity.marks.size === 2")
    assert path.read_text() == "id,decision,label\n105,drop,\n107,drop,\n"
    assert one.errors == other.errors == []


def test_the_last_of_many_quick_marks_stands(browser, keeping):
    running, path = keeping
    page = visit(browser, running.url)
    page.evaluate("() => { for (let k = 0; k < 30; k++) posterity.mark([3, k], k % 2 ? 'keep' : 'drop'); }")
    eventually(page, "posterity.unsaved.size === 0")
    rows = pd.read_csv(path).set_index("id")["decision"]
    assert len(rows) == 30
    assert rows[103] == "keep"
    assert rows[104] == "drop"


def test_marks_wait_for_a_server_that_answers(browser, keeping):
    running, path = keeping
    page = visit(browser, running.url)
    page.route("**/api/decisions", lambda route: route.abort())
    page.evaluate("() => posterity.mark([5], 'drop')")
    eventually(page, "document.querySelector('.problem').textContent.startsWith('Not saved')")
    page.unroute("**/api/decisions")
    page.evaluate("() => posterity.mark([6], 'keep')")
    eventually(page, "document.querySelector('.problem').textContent === ''")
    assert path.read_text() == "id,decision,label\n105,drop,\n106,keep,\n"


def test_marks_outlive_the_server(browser, tmp_path):
    table = pd.DataFrame({"id": [0, 1], "label": 0, "prediction": 0, "error": [0.1, 0.2], "leverage": 0.1})
    source = Source(table, ranking="error", title="A title that is long enough", decisions=tmp_path / "d.csv")
    first = serve(source, browser=False, block=False)
    page = visit(browser, first.url)
    first.stop()
    page.evaluate("() => posterity.mark([1], 'drop')")
    eventually(page, "document.querySelector('.problem').textContent.includes('Is it still running?')")
    cut = "[...document.querySelectorAll('#bar :not(input)')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    assert page.evaluate(f"() => {cut}.length") == 0
    again = serve(source, port=urlsplit(first.url).port, browser=False, block=False)
    page.context.new_page().goto(again.url)
    page.evaluate("() => dispatchEvent(new Event('focus'))")  # back from the other tab
    eventually(page, "posterity.unsaved.size === 0")
    assert (tmp_path / "d.csv").read_text() == "id,decision,label\n1,drop,\n"
    again.stop()


def test_marks_of_a_file_are_not_left_behind_unasked(browser, keeping, tmp_path):
    table = pd.DataFrame({"id": [0, 1], "label": 0, "prediction": 0, "error": [0.1, 0.2], "leverage": 0.1})
    for url, asks in ((write_html(Source(table), tmp_path / "map.html").as_uri(), True), (keeping[0].url, False)):
        page = visit(browser, url)
        asked: list[str] = []
        page.on("dialog", lambda dialog, asked=asked: (asked.append(dialog.type), dialog.accept()))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("d")
        eventually(page, "posterity.unsaved.size === 0")
        page.reload()
        page.wait_for_selector("html[data-drawn]")
        assert asked == ["beforeunload"] * asks
        page.keyboard.press("ArrowDown")
        page.keyboard.press("k")
        eventually(page, "posterity.unsaved.size === 0")
        with page.expect_download():
            page.keyboard.press("e")
        page.reload()
        assert len(asked) == asks
