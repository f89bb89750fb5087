"""The page in a real browser: drawing, selecting, asking, marking."""

from __future__ import annotations

import re
from collections import Counter

import pandas as pd
import pytest

from app.pages import drag, eventually, ink, model, visit
from posterity.adaptation import measure
from posterity.app import Source, write_html
from posterity.runs.decisions import RowDecisions

TOP = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.45), (0.02, 0.45)]


@pytest.fixture
def page(browser, served):
    opened = visit(browser, served.url)
    yield opened
    assert opened.errors == []


def test_both_painters_draw_the_same(browser, served):
    painted = {}
    for painter in ("webgl", "raster"):
        page = visit(browser, served.url, query=f"?painter={painter}")
        assert page.locator(".plot").get_attribute("data-painter") == painter
        painted[painter] = ink(page)
        assert page.errors == []
    assert painted["raster"] == pytest.approx(painted["webgl"], rel=0.05)
    assert painted["raster"] > 2000


def test_it_fits_the_screen_and_follows_the_system(browser, served):
    page = visit(browser, served.url, dark=True)
    assert page.evaluate("() => document.documentElement.scrollWidth <= 1280 && document.body.scrollHeight <= 800")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("t")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"


def test_lasso_links_map_table_and_gallery(page, maps):
    drag(page, TOP)
    chosen = model(page, "m.selection")
    assert 3 < len(chosen) < 100
    eventually(page, f"document.querySelector('#bar').innerText.includes('{len(chosen)} selected')")  # the next frame
    best = maps[1].table.loc[chosen].sort_values("loo_nll", ascending=False)["id"].tolist()
    shown = page.locator(".table .tr").evaluate_all("rows => rows.map((row) => Number(row.dataset.row))")
    assert shown[:5] == best[:5]
    page.keyboard.press("2")
    page.wait_for_selector(".gallery .card img")
    assert page.locator(".gallery .card").first.get_attribute("title") == f"#{best[0]}"
    page.keyboard.press("Escape")
    assert model(page, "m.selection.length") == 0


def test_box_adds_and_takes_away(page):
    page.keyboard.press("b")
    drag(page, [(0.0, 0.0), (1.0, 0.4)])
    first = model(page, "m.selection.length")
    page.keyboard.down("Shift")
    drag(page, [(0.0, 0.4), (1.0, 1.0)])
    page.keyboard.up("Shift")
    assert model(page, "m.selection.length") == model(page, "m.rows") > first > 0
    page.keyboard.down("Control")
    drag(page, [(0.0, 0.0), (1.0, 0.4)])
    page.keyboard.up("Control")
    assert model(page, "m.selection.length") == model(page, "m.rows") - first


def test_hover_shows_the_example(page):
    box = page.locator(".plot .over").bounding_box()
    for dx in range(100, 640, 8):
        page.mouse.move(box["x"] + dx, box["y"] + 470)
        if page.locator("#tip").is_visible():
            break
    assert page.locator("#tip img").is_visible()
    assert re.search(r"#\d+", page.locator("#tip").inner_text())


def test_guides_move_and_categories_follow(page, maps):
    limits = model(page, "m.limits")
    assert limits == pytest.approx(maps[1].limits, rel=1e-3)
    tally = model(page, "[0, 1, 2, 3].map((k) => m.category.filter((c) => c === k).length)")
    counts = maps[1].table["category"].value_counts()
    names = ["regular", "uncertain", "unpredictable", "unpredictable and uncertain"]
    assert tally == [counts.get(name, 0) for name in names]
    box = page.locator(".plot .over").bounding_box()
    for y in range(20, int(box["height"]) - 60, 3):  # find the line by the pointer it gives
        page.mouse.move(box["x"] + 90, box["y"] + y)
        if page.locator(".plot .over").evaluate("e => e.style.cursor") == "ns-resize":
            break
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + y + 80, steps=4)
    page.mouse.up()
    assert model(page, "m.view.gy") < 0.9
    assert model(page, "m.limits[1]") < limits[1]


def test_search_and_legend_filter(page, maps):
    page.keyboard.press("/")
    page.keyboard.type("label:7 error>0.5")
    eventually(page, "window.posterity.shown.some((v) => !v)")
    table = maps[1].table
    assert model(page, "m.shown.reduce((a, b) => a + b)") == ((table["label"] == 7) & (table["error"] > 0.5)).sum()
    page.locator("#search").fill("nonsense>3")
    page.wait_for_selector("#bar .problem:has-text('no column')")
    page.locator("#search").fill("")
    eventually(page, "window.posterity.shown.every(Boolean)")
    page.locator(".legend .key").first.click()
    eventually(page, "window.posterity.shown.some((v) => !v)")
    assert model(page, "m.shown.reduce((a, b) => a + b)") == (table["category"] != "regular").sum()


def test_buttons_mark_and_go_on_to_the_next_example(page, maps):
    page.keyboard.press("e")
    assert "Nothing is marked yet" in page.locator("#toast").inner_text()
    page.locator("tr[data-row], [data-row]").first.click()
    first = model(page, "m.focused")
    for name in ("drop", "keep"):
        page.locator(f".act.{name}").click()
    assert model(page, "[...m.marks.values()].map((mark) => mark.decision)") == ["drop", "keep"]
    assert model(page, "m.focused") != first
    with page.expect_download():
        page.keyboard.press("e")
    assert "2 decisions in decisions.csv. Next: posterity adapt" in page.locator("#toast").inner_text()


def test_marking_by_keys_undo_and_export(page, tmp_path, maps):
    worst = maps[1].top(4)
    page.keyboard.press("ArrowDown")
    for key in "drk":
        page.keyboard.press(key)
    with page.expect_download() as download:
        page.keyboard.press("e")
    download.value.save_as(tmp_path / "decisions.csv")
    found = RowDecisions.read(tmp_path / "decisions.csv")
    ids = worst["id"].tolist()
    assert found.dropped == (ids[0],)
    assert found.relabelled == {ids[1]: str(worst["suspected_label"].iloc[1])}
    assert found.kept == (ids[2],)
    page.keyboard.press("u")
    page.keyboard.press("Control+z")
    assert model(page, "m.decisions()") == [{"id": ids[0], "decision": "drop", "label": ""}]


def test_keys_leave_the_map_alone_while_help_is_open(page):
    drag(page, TOP)
    selected = model(page, "m.selection")
    assert selected
    page.keyboard.press("ArrowDown")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("d")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert model(page, "m.decisions()") == []
    assert model(page, "m.selection") == selected


def test_what_if_in_the_page(page, maps, digits):
    drag(page, TOP)
    ids = [int(i) for i in model(page, "m.selection.map((row) => m.ids[row])")]
    page.keyboard.press("w")
    page.wait_for_selector(".answer[data-change]")
    truth = maps[1].what_if(remove=ids).on(digits[1]).loss_change
    assert float(page.locator(".answer").first.get_attribute("data-change")) == pytest.approx(truth, rel=1e-6)
    assert page.locator(".answer .flag").first.inner_text()
    page.locator(".ask").nth(1).click()
    page.wait_for_selector(".answer:nth-child(2)[data-change]")


def test_a_what_if_is_measured_in_the_page(page, maps, digits):
    drag(page, TOP)
    ids = [int(i) for i in model(page, "m.selection.map((row) => m.ids[row])")]
    page.keyboard.press("w")
    page.locator(".measure").click()
    page.wait_for_selector(".measured[data-change]")
    truth = measure(maps[1], remove=ids, on=digits[1]).change
    assert float(page.locator(".measured").get_attribute("data-change")) == pytest.approx(truth, rel=1e-6)
    assert "accuracy" in page.locator(".measured").inner_text()
    assert page.locator(".measured progress").count() == 0


def test_neighbours_and_influences(page, maps, digits):
    page.keyboard.press("ArrowDown")
    page.keyboard.press("n")
    page.wait_for_selector(".close .card")
    assert page.locator(".close .card").count() == 12
    page.keyboard.press("4")
    page.locator("[data-test]").nth(2).click()
    page.wait_for_selector(".influences .card")
    test = int(page.locator("[data-test]").nth(2).get_attribute("data-test"))
    truth = maps[1].influence((digits[1][0][test : test + 1], digits[1][1][test : test + 1]))
    cards = page.locator(".influences .card").evaluate_all("cards => cards.map((card) => Number(card.dataset.row))")
    assert set(cards) == set(truth.abs().nlargest(24).index)


def test_neighbours_stand_beside_a_suspect_unasked(page):
    row = model(page, "Array.from({ length: m.rows }, (_, i) => i).find((i) => m.suggestion(i))")
    page.evaluate(f"() => window.posterity.focus({row})")
    page.wait_for_selector(".close .card")
    shown = page.locator(".close .card").evaluate_all("cards => cards.map((card) => Number(card.dataset.row))")
    labels = Counter(model(page, f"{shown}.map((row) => m.labelOf(row))"))
    most, count = labels.most_common(1)[0]
    assert f"this model: {count} {most}" in re.sub(r"\s+", " ", page.locator(".close h3").inner_text())


def test_buttons_stay_in_their_place_from_one_example_to_the_next(page):
    page.locator(".table .tr").first.click()
    places = []
    for _ in range(4):
        places.append(page.locator(".act.keep").bounding_box())
        page.locator(".act.keep").click()
        page.wait_for_timeout(50)  # neighbours come later, and push nothing away
    assert all(place == places[0] for place in places)


def test_a_test_example_is_not_taken_for_the_training_example_before_it(page):
    page.locator(".table .tr").first.click()
    assert page.locator(".detail").is_visible()
    page.keyboard.press("4")
    assert not page.locator(".detail").is_visible()
    page.locator("[data-test]").first.click()
    page.locator(".influences .card").first.click()
    assert page.locator(".detail").is_visible()  # of the card
    page.locator("[data-test]").nth(1).click()
    assert not page.locator(".detail").is_visible()
    page.keyboard.press("1")
    assert page.locator(".detail").is_visible()


def test_answers_about_a_selection_go_with_it(page):
    drag(page, TOP)
    page.keyboard.press("w")
    page.wait_for_selector(".answer[data-change]")
    page.keyboard.press("Escape")
    assert page.locator(".answer").count() == 0


def test_newcomers_are_told_how_to_read_the_map(browser, served):
    page = visit(browser, served.url, newcomer=True)
    assert "more wrong" in page.locator(".hint").inner_text()
    page.locator(".hint button").click()
    assert page.locator(".hint").count() == 0
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert not page.locator(".hint").is_visible()


def test_features_lie_beside_the_scores(page, maps):
    categories = model(page, "Array.from(m.category)")
    page.get_by_text("Features", exact=True).click()
    assert model(page, "[m.view.x, m.view.y]") == ["feature_1", "feature_2"]
    assert model(page, "Array.from(m.category)") == categories  # which stay those of the scores
    page.get_by_text("Scores", exact=True).click()
    assert model(page, "m.view.x") == "leverage"


def test_classes_are_summed_up(page, maps):
    page.locator(".tabs button", has_text="Classes").click()
    page.wait_for_selector(".classes td")
    table = maps[1].table
    suspects = table[table["suspected_label"].notna()]
    counts = page.locator(".classes tr td:nth-child(3)").all_inner_texts()
    assert sum(int(text.split()[0]) for text in counts) == len(suspects)
    page.locator(".classes tr").nth(1).click()
    eventually(page, f"window.posterity.shown.reduce((a, b) => a + b, 0) === {int(counts[0].split()[0])}")


def test_a_file_without_a_server_knows_neighbours_and_words(browser, source, tmp_path):
    import dataclasses

    from posterity.app import Preview

    texts = dataclasses.replace(source, kind="text", preview=lambda i: Preview("text", f"digit number {i}"))
    page = visit(browser, write_html(texts, tmp_path / "map.html").as_uri())
    first = int(source.table.nlargest(1, source.ranking)["id"].iloc[0])
    page.evaluate(f"() => window.posterity.focus(window.posterity.rowOf.get({first}))")
    page.keyboard.press("n")
    page.wait_for_selector(".close .card")
    wanted = [i for i, _ in source.neighbours(first, 12)]
    found = page.locator(".close .card").evaluate_all("cards => cards.map((card) => Number(card.title.slice(1)))")
    assert found == wanted
    page.evaluate("() => window.posterity.set({ q: '\"number 17\"' })")
    eventually(page, "window.posterity.shown.reduce((a, b) => a + b, 0) === 11")  # 17, 170 ... 179
    assert page.errors == []


def test_epochs_trails_curves_and_outcome(page, maps):
    page.keyboard.press("5")
    drag(page, TOP)
    slider = page.locator("input[type=range]")
    slider.evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    eventually(page, "window.posterity.view.epoch === 0")
    early = model(page, "Array.from(m.column('error'))")
    assert early == pytest.approx(maps[0].columns["error"].tolist(), rel=1e-3)
    assert page.locator(".training .series").count() == 3
    assert page.locator(".training .dot").count() == 30
    assert "Correlation over 30 examples: 1.000" in page.locator(".training").inner_text()


def test_two_runs_side_by_side(page):
    page.get_by_text("Compare").click()
    page.wait_for_selector(".plot:nth-child(2)")
    assert page.locator(".plot .caption").all_inner_texts() == ["Digits", "early"]
    drag(page, TOP, plot=1)
    assert model(page, "m.selection.length") > 3


def test_the_address_holds_the_state(browser, served):
    first = visit(browser, served.url)
    drag(first, TOP)
    first.keyboard.press("ArrowDown")
    first.keyboard.press("3")
    first.evaluate("() => window.posterity.set({ y: 'loo_nll', ys: 'log', colour: 'label', gx: 0.8 })")
    eventually(first, "location.hash.includes('loo_nll') && location.hash.includes('sel=')")
    state = first.evaluate("() => location.hash")
    second = visit(browser, served.url, state=state)
    for known in ("m.view.y", "m.view.ys", "m.view.colour", "m.view.gx", "m.view.tab", "m.focused", "m.selection"):
        assert model(second, known) == model(first, known)


def test_a_link_on_another_page_leads_in(browser, served):
    page = browser.new_context().new_page()
    page.goto(f"data:text/html,<a href='{served.url}'>map</a>")
    page.get_by_text("map").click()
    page.wait_for_selector("html[data-drawn]")
    assert "token" not in page.url


def test_numbers_instead_of_classes(browser, tmp_path):
    table = pd.DataFrame({"id": [5, 9, 12], "label": [1.5, -2.0, 30.25], "prediction": [1.4, -1.0, 12.0]})
    table = table.assign(error=[0.1, 1.0, 18.25], leverage=[0.1, 0.0, 0.4], loo_nll=[0.5, float("nan"), 9.0])
    page = visit(browser, write_html(Source(table), tmp_path / "map.html").as_uri())
    assert page.locator(".table .tr .c-label").all_inner_texts() == [
        "30.25",
        "1.5",
        "-2",
    ]  # what is not known comes last
    page.keyboard.press("ArrowDown")
    assert model(page, "m.view.focus") == 12
    page.keyboard.press("r")
    assert "No other label is suggested" in page.locator("#toast").inner_text()
    page.keyboard.press("3")
    assert "has no model and no data" in page.locator(".whatif").inner_text()
    assert page.errors == []


def test_an_unlikely_error_still_comes_with_the_likeliest_other_label(browser, tmp_path):
    table = pd.DataFrame({"id": range(10), "label": 0, "prediction": 0, "loo_prediction": 0})
    table = table.assign(error=0.1, leverage=0.1, label_error=0.0, suggested_label=1, suspected_label=pd.NA)
    table.loc[3, ["error", "leverage", "label_error"]] = 0.9, 0.9, 0.3  # looked at, but not likely enough to be flagged
    source = Source(table, classes=("cat", "dog"), ranking="label_error")
    page = visit(browser, write_html(source, tmp_path / "map.html").as_uri())
    page.locator(".table .tr").first.click()
    assert "The model agrees with its label, even without it. If its label is wrong, it is most likely dog." in (
        re.sub(r"\s+", " ", page.locator(".detail .say").inner_text())
    )
    page.get_by_role("button", name="Relabel as dog").click()
    assert model(page, "m.marks.get(3)") == {"decision": "relabel", "label": "dog"}
    assert page.errors == []


def test_similar_amounts_are_summed_up_by_their_middle(browser, tmp_path):
    label = [20.0, 50.0, 55.0, 60.0]
    table = pd.DataFrame({"id": range(4), "label": label, "prediction": 50.0, "error": [3.0, 0.0, 0.1, 0.2]})
    source = Source(table.assign(leverage=0.1), ranking="error", neighbours=lambda i, k: [(1, 0.9), (2, 0.8), (3, 0.7)])
    page = visit(browser, write_html(source, tmp_path / "map.html").as_uri())
    page.locator(".table .tr").first.click()
    page.wait_for_selector(".close .card")
    assert page.locator(".close h3").inner_text().endswith(": median 55.0")
    assert page.errors == []


def test_a_narrow_screen_shows_labels_and_marks(page):
    page.set_viewport_size({"width": 420, "height": 800})
    first = page.locator(".table .tr").first
    for part in (".c-label", ".c-act"):
        box = first.locator(part).bounding_box()
        assert box["width"] > 40
        assert box["x"] + box["width"] <= 420
    assert page.evaluate("() => document.documentElement.scrollWidth") == 420
