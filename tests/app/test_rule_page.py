"""The rule in a real browser: it moves, it is dragged, a link reproduces it, and a file needs no server."""

from __future__ import annotations

import io
import urllib.request

import pytest
from PIL import Image

from app.pages import eventually, model, visit
from posterity.app import show_rule
from posterity.app.rule import page as rule_page
from posterity.app.rule.catalogue import asked
from posterity.app.rule.presets import PRESETS

TWO = "#p=newton&p=gradient-descent&t=3"
# Texts in the heads of panels that do not fit: selects do not say so, hence their text is measured.
CUT = """() => [...document.querySelectorAll(".head")].flatMap((head) => {
  const menu = head.querySelector(".preset"), family = head.querySelector(".family"), style = getComputedStyle(menu),
    context = document.createElement("canvas").getContext("2d"), title = menu.selectedOptions[0].textContent;
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  return [[title, context.measureText(title).width + 20 > menu.clientWidth],
    [family.textContent, family.scrollWidth > family.clientWidth]].filter(([, is]) => is).map(([text]) => text);
})"""


@pytest.fixture(scope="module")
def shown():
    running = show_rule(browser=False, block=False)
    yield running
    running.stop()


@pytest.fixture
def page(browser, shown):
    opened = visit(browser, shown.url, state=TWO)
    settled(opened)
    yield opened
    assert opened.errors == []


def settled(page):
    eventually(page, "window.posterity.panels.length && window.posterity.panels.every((p) => p.film)")


def test_presets_reach_the_numbers_of_the_library(page):
    expected = asked({"preset": "newton"})
    assert model(page, "m.panels[0].film.means") == expected["means"]
    assert model(page, "m.panels[0].film.surface") == expected["surface"]
    page.keyboard.press("End")
    eventually(page, "document.querySelector('.readout').innerText.includes('m = (0.80, −0.40)')")
    assert "S ← ∇²ℓ(m)" in page.locator(".panel").first.inner_text()
    assert "newton().run(theta, loss, steps=10)" in page.locator(".panel").first.inner_text()


def test_keys_step_play_and_turn_the_light_off(page):
    eventually(page, "document.querySelector('.panel').dataset.step === '3'")
    page.keyboard.press("ArrowRight")
    eventually(page, "document.querySelector('.panel').dataset.step === '4'")
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    eventually(page, "window.posterity.position > 2 && window.posterity.playing")
    page.keyboard.press(" ")
    assert not model(page, "m.playing")
    page.keyboard.press("t")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("2")
    eventually(page, "window.posterity.look === 'SAM beside Bayes'")


def test_settings_change_the_film_and_a_link_reproduces_it(page, browser, shown):
    page.keyboard.press("s")
    page.locator(".panel").first.locator("select").nth(1).select_option("banana")
    eventually(page, "window.posterity.panels[0].film.choice?.loss === 'banana'")
    page.evaluate("() => window.posterity.panels[0].change({ lr: 0.5 })")
    eventually(page, "window.posterity.panels[0].film.choice?.lr === 0.5")
    assert "BayesianLearningRule(Delta(), lr=0.5)" in page.locator(".panel").first.inner_text()
    link = page.evaluate("() => location.hash")
    again = visit(browser, shown.url, state=link)
    settled(again)
    for what in ("m.panels[0].film.means", "m.panels.map((p) => p.preset)", "Math.round(m.position)"):
        assert model(again, what) == model(page, what)
    assert again.errors == []


def test_points_are_dragged_by_hand_and_by_keys(page):
    page.evaluate("() => { location.hash = '#p=linear-regression&t=3'; }")
    settled(page)
    eventually(page, "window.posterity.panels[0].preset === 'linear-regression' && window.posterity.panels[0].points")
    before = model(page, "m.panels[0].film.data[0]")
    x, y = page.evaluate(
        """() => { const p = window.posterity.panels[0], box = p.beside.getBoundingClientRect(),
             to = p.points.map(box.width, box.height), [x, y] = p.film.data[0];
             return [box.left + to.x(x), box.top + to.y(y)]; }"""
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 60, steps=3)
    page.mouse.up()
    eventually(page, "window.posterity.panels[0].changes.points && window.posterity.panels[0].film.choice")
    page.keyboard.press("ArrowUp")
    eventually(page, f"window.posterity.panels[0].film.data[0][1] > {before[1] + 0.1}")
    eventually(page, "!window.posterity.panels[0].moving")
    points = model(page, "m.panels[0].film.choice.points")
    expected = asked({"preset": "linear-regression", "changes": {"points": points}})
    assert model(page, "m.panels[0].film.means") == expected["means"]


def test_a_gif_is_saved(page):
    with page.expect_download() as waiting:
        page.keyboard.press("g")
    assert waiting.value.suggested_filename == "newton-gradient-descent.gif"
    with Image.open(waiting.value.path()) as saved:
        assert saved.n_frames == 61
        saved.seek(60)
        assert len(saved.convert("RGB").getcolors(maxcolors=300)) > 20


def test_impossible_settings_are_explained_and_taken_back(page):
    page.evaluate("() => window.posterity.panels[0].change({ estimator: 'dropout' })")
    eventually(page, "!document.getElementById('toast').hidden")
    assert "estimator of the family 'full'" in page.locator("#toast").inner_text()
    assert model(page, "m.panels[0].film.means.length") == 11
    page.errors[:] = [line for line in page.errors if "422" not in line]  # the browser reports refusals itself


def test_sliders_have_their_own_keys_and_go_back_where_a_setting_is_refused(page):
    page.keyboard.press("s")
    slider = page.locator(".panel").first.get_by_label("step size ρ")
    slider.focus()
    page.keyboard.press("End")  # the largest step, not the last one of the film
    eventually(page, "!document.getElementById('toast').hidden")
    assert "ρ = 2 leaves the family" in page.locator("#toast").inner_text()
    assert model(page, "m.position") == 3
    assert slider.evaluate("(input) => Math.exp(input.value)") == pytest.approx(1.0, abs=0.01)
    assert slider.locator("xpath=..").locator("output").inner_text() == "1"
    page.errors[:] = [line for line in page.errors if "422" not in line]  # the browser reports refusals itself


def test_a_film_that_diverges_says_so(page):
    page.evaluate("() => window.posterity.panels[1].change({ lr: 2 })")
    eventually(page, "window.posterity.panels[1].film.choice.lr === 2")
    page.keyboard.press("End")
    eventually(page, "document.querySelectorAll('.readout')[1].innerText.includes('diverged: choose a smaller ρ')")


def test_the_coldest_optimizers_still_move(page):
    page.keyboard.press("s")
    for name in ("ivon", "vadam", "bsam", "evon"):
        page.locator("select.preset").first.select_option(name)
        eventually(page, f"window.posterity.panels[0].film && window.posterity.panels[0].preset === '{name}'")
        coldest = float(page.locator(".panel").first.get_by_label("temperature τ").get_attribute("min"))
        film = asked({"preset": name, "changes": {"temperature": coldest, "steps": 20}})
        assert all(v is not None and v != start for v, start in zip(film["means"][-1][0], film["means"][0][0]))


def test_comparisons_have_drawings_of_one_size_and_end_with_a_change_of_their_panels(page):
    page.keyboard.press("1")
    eventually(page, "window.posterity.panels.length === 3 && window.posterity.panels.every((p) => p.film)")
    page.keyboard.press(" ")
    eventually(page, "document.querySelector('#rule').innerText.includes('The same loss and the same rule')")
    eventually(page, "new Set([...document.querySelectorAll('.plane')].map((c) => c.clientHeight)).size === 1")
    page.locator("select.preset").first.select_option("sam")
    eventually(page, "window.posterity.panels[0].film?.steps && window.posterity.panels[0].preset === 'sam'")
    eventually(page, "document.querySelector('#bar select').value === ''")
    eventually(page, "!document.querySelector('#rule').innerText.includes('The same loss')")


def test_what_is_picked_from_a_menu_moves_with_smaller_steps_where_its_own_are_too_large(page):
    """Newton's step leaves the family where the loss bends down; two signs need a family of signs."""
    page.keyboard.press("s")
    menus = page.locator(".panel").first.locator(".controls select")
    menus.nth(0).select_option("two-modes")
    eventually(page, "window.posterity.panels[0].film.choice?.loss === 'two-modes'")
    changed = model(page, "m.panels[0].film.choice")
    assert (changed["lr"], changed["retracted"]) == (0.1, True)
    assert "ρ = 0.1" in page.locator("#toast").inner_text()
    menus.nth(0).select_option("signs")
    eventually(page, "window.posterity.panels[0].film.choice?.loss === 'signs'")
    assert model(page, "m.panels[0].film.choice.family") == "signs"
    menus.nth(1).select_option("point")
    eventually(page, "window.posterity.panels[0].film.choice?.family === 'point'")
    assert model(page, "m.panels[0].film.choice.loss") == "two-modes"
    page.errors[:] = [line for line in page.errors if "422" not in line]  # the browser reports refusals itself


def test_one_file_carries_the_presets(browser, tmp_path, monkeypatch):
    few = {name: PRESETS[name] for name in ("newton", "gradient-descent", "beta-bernoulli")}
    monkeypatch.setattr(rule_page, "PRESETS", few)
    path = show_rule(tmp_path / "rule.html")
    page = visit(browser, path.as_uri(), state=TWO)
    settled(page)
    assert model(page, "m.panels[0].film.means") == asked({"preset": "newton"})["means"]
    assert "script-src 'sha256-" in path.read_text(encoding="utf-8")
    page.keyboard.press("s")
    assert page.locator(".controls select").first.is_disabled()
    assert page.errors == []
    assert {url.split(":")[0] for url in page.asked} <= {"file", "data", "blob"}


def test_the_policy_is_strict(shown):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(shown.url.split("?")[0])
    assert refused.value.code == 401
    policy = refused.value.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    refused.value.close()


def test_it_fits_the_screen(page):
    assert page.evaluate("() => document.documentElement.scrollWidth <= 1280 && document.body.scrollHeight <= 800")
    picture = Image.open(io.BytesIO(page.screenshot()))
    assert len(picture.convert("RGB").getcolors(maxcolors=10**6)) > 200


def test_settings_of_three_panels_leave_room_for_the_drawings(browser, shown):
    page = visit(browser, shown.url, state="#p=gradient-descent&p=newton&p=adam")
    settled(page)
    page.keyboard.press("s")
    eventually(page, "document.querySelectorAll('.settings:not([hidden])').length === 3")
    heights = page.evaluate("() => [...document.querySelectorAll('canvas.plane')].map((c) => c.clientHeight)")
    assert min(heights) >= 160
    assert page.evaluate("() => document.body.scrollHeight") <= 800
    for panel in page.locator(".panel").all():
        assert panel.locator(".settings").evaluate("(box) => box.clientHeight") > 90
        assert panel.locator("pre").is_visible()


def test_every_estimator_shows_the_sliders_that_it_has(page):
    for preset, label, setting in (("sam", "radius r", "radius"), ("dropout", "kept π", "keep")):
        page.evaluate(f"() => {{ location.hash = '#p={preset}'; }}")
        eventually(page, f"window.posterity.panels[0].preset === '{preset}' && window.posterity.panels[0].film")
        page.keyboard.press("s")
        slider = page.get_by_label(label)
        slider.focus()
        slider.press("ArrowRight")
        eventually(page, f"window.posterity.panels[0].film.choice?.{setting} !== undefined")
        eventually(page, "!window.posterity.panels[0].moving")
        changed = model(page, "m.panels[0].film.choice")
        assert changed[setting] > getattr(PRESETS[preset].choice, setting)
        expected = asked({"preset": preset, "changes": {setting: changed[setting]}})
        assert model(page, "m.panels[0].film.means") == expected["means"]


@pytest.mark.parametrize("width", [1280, 1600])
def test_titles_and_families_of_the_comparisons_are_readable(browser, shown, width):
    page = visit(browser, shown.url, state="#p=newton")
    page.set_viewport_size({"width": width, "height": 900})
    for index in range(model(page, "m.catalogue.tours.length")):
        page.evaluate(f"() => window.posterity.tour({index})")
        eventually(page, "window.posterity.panels.every((p) => p.film && p.element.isConnected)")
        page.evaluate("() => window.posterity.play(false)")
        cut = page.evaluate(CUT)
        assert cut == [], model(page, "m.look")


def test_a_narrow_window_draws_too(page):
    page.set_viewport_size({"width": 480, "height": 900})
    eventually(page, "[...document.querySelectorAll('canvas.plane')].every((c) => c.clientHeight > 200)")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 480
