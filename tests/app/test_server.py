"""What the server answers, held to the memory map it came from."""

import base64
import json
import threading
import time
import zlib

import numpy as np
import pandas as pd
import pytest

from app.raw import Raw
from posterity.adaptation import measure
from posterity.app import Preview, Source, from_map, serve
from posterity.app.jobs import Jobs
from posterity.app.packing import bits
from posterity.app.pictures import pixels_of
from posterity.errors import InvalidInput, PosterityError
from posterity.memory import MemoryMap


def asked(raw, path):
    status, _, content = raw(path)
    assert status == 200, content
    return json.loads(content)


def test_what_if_is_that_of_the_map(raw, maps, digits):
    m, (_, test) = maps[1], digits
    mask = np.zeros(len(m), dtype=bool)
    mask[[3, 17, 42]] = True
    body = {"remove": base64.b64encode(bits(mask)).decode(), "relabel": {"0": 4}}
    status, _, content = raw.post("/api/what-if", json.dumps(body).encode())
    truth = m.what_if(remove=[3, 17, 42], relabel={0: 4}).on(test)
    found = json.loads(content)
    assert status == 200
    assert found["loss_after"] == pytest.approx(truth.loss_after.mean().item())
    assert found["changed"] == (truth.before.argmax(-1) != truth.after.argmax(-1)).sum()
    right = (truth.before.argmax(-1) == test[1]).double().mean().item()
    assert found["accuracy_before"] == (None if found["warning"] else pytest.approx(right))  # a direction, if flagged


def test_pictures_are_the_pixels(raw, digits):
    status, headers, content = raw("/api/preview/5")
    assert (status, headers["content-type"]) == (200, "image/png")
    start = content.index(b"IDAT") + 4
    rows = np.frombuffer(zlib.decompress(content[start : content.index(b"IEND") - 8]), np.uint8).reshape(8, 9)[:, 1:]
    x = digits[0][0][5].reshape(8, 8).numpy()
    np.testing.assert_allclose(rows / 255, (x - x.min()) / np.ptp(x), atol=0.003)


def test_missing_pixels_are_dark():
    image = np.array([[np.nan, 1.0], [3.0, np.inf]])
    assert pixels_of(image).tolist() == [[0, 0], [255, 255]]
    assert pixels_of(np.full((2, 2), np.nan)).tolist() == [[0, 0], [0, 0]]


def test_exact_numbers_of_an_example(raw, maps):
    found, row = asked(raw, "/api/example/7"), maps[1].table.iloc[7]
    assert found["error"] == row["error"]
    assert found["label"] == row["label"]


def test_influences_are_those_of_the_map(raw, maps, digits):
    m, (_, (x, y)) = maps[1], digits
    found = asked(raw, "/api/influences/11?k=5")
    truth = m.influence((x[11:12], y[11:12]))
    best = truth.reindex(truth.abs().sort_values(ascending=False).index[:5])
    assert [i for i, _ in found] == best.index.tolist()
    assert [v for _, v in found] == pytest.approx(best.tolist())


def test_decisions_are_kept_and_found_again(maps, tmp_path):
    path = tmp_path / "decisions.csv"
    running = serve(from_map(maps[1], decisions=path), browser=False, block=False)
    raw = Raw(running.url)
    decided = [{"id": 3, "decision": "drop"}, {"id": 0, "decision": "relabel", "label": "4"}]
    status, _, content = raw.post("/api/decisions", json.dumps({"decisions": decided}).encode())
    assert status == 200
    assert json.loads(content)["kept"] == "decisions.csv"
    assert path.read_text() == "id,decision,label\n0,relabel,4\n3,drop,\n"
    _, _, content = raw("/api/columns")
    assert b'"decision":"relabel","label":"4"' in content
    running.stop()


def test_unknown_questions(raw):
    for path in (
        "/api/preview/99999",
        "/api/neighbours/0?k=0",
        "/api/influences/100",
        "/api/epoch/2",
        "/api/search?q=a",
    ):
        status, _, content = raw(path)
        assert status == 422
        assert json.loads(content)["error"]


def test_decisions_are_kept_in_a_path(maps):
    with pytest.raises(InvalidInput, match=r"decisions: expected a Path, got 'marks\.csv'"):
        Source(maps[0].table, decisions="marks.csv")


def test_a_table_without_the_columns(maps):
    with pytest.raises(InvalidInput, match="table without leverage"):
        Source(maps[1].table.drop(columns="leverage"))


@pytest.mark.parametrize("ids", [[2**53, 1], [-(2**60), 1], [0.5, 1.0], ["a", "b"]])
def test_ids_that_a_browser_cannot_hold(ids):
    with pytest.raises(InvalidInput, match="ids of the table: expected whole numbers"):
        Source(_table().assign(id=ids))


def test_what_cannot_be_served():
    with pytest.raises(PosterityError, match="a MemoryMap, a Source, a run or its folder"):
        serve(3, browser=False)
    with pytest.raises(PosterityError, match="a number from 0 to 65535"):
        serve(".", port=70000, browser=False)


def test_a_map_without_its_model_is_a_table(maps, tmp_path):
    maps[1].save(tmp_path / "map")
    source = from_map(MemoryMap.load(tmp_path / "map"))
    assert source.what_if is None
    assert len(source.table) == len(maps[1])


def test_a_taken_port_is_an_error(served):
    with pytest.raises(PosterityError, match="expected a free one"):
        serve(Source(_table()), port=Raw(served.url).port, browser=False)


def test_a_failing_preview_tells_the_terminal_and_not_the_page(maps, caplog):
    def broken(i: int) -> Preview:
        raise ZeroDivisionError("secret")

    source = Source(_table(), kind="text", preview=broken)
    running = serve(source, browser=False, block=False)
    status, _, content = Raw(running.url)("/api/preview/0")
    running.stop()
    assert status == 500
    assert b"secret" not in content
    assert "a question failed" in caplog.text


def _table():
    return pd.DataFrame(
        {"id": [0, 1], "label": [0, 1], "prediction": [0, 1], "error": [0.1, 0.2], "leverage": [0.1, 0.2]}
    )


def test_measurements_run_in_the_background(raw, maps, digits, source):
    mask = np.zeros(len(source.table), dtype=bool)
    mask[:5] = True
    body = {"remove": base64.b64encode(bits(mask)).decode(), "relabel": {"7": 2}}
    status, _, content = raw.post("/api/measure", json.dumps(body).encode())
    assert status == 200
    path = f"/api/measure/{json.loads(content)['job']}"
    found = {"result": None, "error": ""}
    while not (found["result"] or found["error"]):
        found = json.loads(raw(path)[2])
        time.sleep(0.05)
    truth = measure(maps[1], remove=source.table["id"][:5], relabel={7: 2}, on=digits[1])
    assert found["result"]["change"] == pytest.approx(truth.change, rel=1e-6)
    assert found["result"]["accuracy"] == pytest.approx(truth.accuracy)


def test_measurements_of_nothing_and_of_no_number(raw):
    status, _, content = raw.post("/api/measure", b'{"remove": "", "relabel": {}}')
    assert status == 422
    assert b"expected" in content
    assert raw("/api/measure/999")[0] == 422


def test_jobs_fail_one_by_one_and_are_bounded():
    jobs, gate = Jobs(), threading.Event()
    failing = jobs.start(lambda progress: (_ for _ in ()).throw(InvalidInput("no such row")))
    while not jobs.about(failing).ended:
        time.sleep(0.01)
    assert jobs.about(failing).error == "no such row"
    numbers = [jobs.start(lambda progress: gate.wait(60) and {"done": 1}) for _ in range(8)]
    with pytest.raises(InvalidInput, match="at most 8"):
        jobs.start(lambda progress: None)
    gate.set()
    while not all(jobs.about(n).ended for n in numbers):
        time.sleep(0.01)
    assert jobs.about(numbers[-1]).result == {"done": 1}
