"""How many frames a second the rule's page draws while it plays, in a browser without a graphics card.

Frames are counted by the page's own clock over some seconds of playing. Beside them stands the time that the drawing
itself takes: it limits the frames where the browser does not. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys

import report
from playwright.sync_api import Page, sync_playwright

from posterity.app import show_rule

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SCENES = {
    "one panel, 2-D contours": ("bayes-ridge",),
    "three panels, 2-D contours": ("gradient-descent", "newton", "adam"),
    "two panels, 2-D contours and data": ("vi-logistic", "laplace"),
    "mixture of two, 2-D contours": ("mixture-vi",),
    "one dimension, expected loss": ("bayes-valleys",),
}
GOAL = 60.0
COUNT = """(seconds) => new Promise((done) => {
  const app = window.posterity; app.speed = app.steps / (seconds + 1); app.position = 0; app.frames = 0;
  app.play(true); const from = performance.now();
  setTimeout(() => { const n = app.frames; app.play(false); done(n / ((performance.now() - from) / 1000)); },
             1000 * seconds);
})"""
DRAW = """() => { const app = window.posterity, from = performance.now(); const n = 200;
  for (let k = 0; k < n; k++) for (const panel of app.panels) panel.draw((k / n) * app.steps);
  document.querySelector("canvas.plane").getContext("2d").getImageData(0, 0, 1, 1);
  return (performance.now() - from) / n; }"""


def measured(page: Page, address: str, presets: tuple[str, ...], seconds: float) -> tuple[float, float]:
    """Frames a second, and milliseconds that drawing all panels once takes."""
    page.goto(address + "#" + "&".join(f"p={name}" for name in presets))
    wanted = "&&".join(f"app.panels[{k}]?.preset==='{name}'" for k, name in enumerate(presets))
    ready = f"{wanted}&&app.panels.length==={len(presets)}&&app.panels.every((p)=>p.film)"
    look = f"const app=window.posterity, look=()=>({ready})?done():setTimeout(look,20); look();"
    page.evaluate(f"() => new Promise((done) => {{ {look} }})")
    return float(page.evaluate(COUNT, seconds)), float(page.evaluate(DRAW))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of playing, for each scene and run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", help="folder for the finished table")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("rule_page: expected chromium on this machine, got none")
    shown = show_rule(browser=False, block=False)
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        version = browser.version
        page = browser.new_context(viewport={"width": 1600, "height": 900}).new_page()
        page.goto(shown.url)
        page.wait_for_selector("html[data-drawn]")
        for title, presets in SCENES.items():
            found = [measured(page, shown.url.split("?")[0], presets, options.seconds) for _ in range(options.runs)]
            frames, drawing = (statistics.median(column) for column in zip(*found))
            rows.append([title, f"{frames:.0f}", f"{drawing:.1f}"])
        browser.close()
    shown.stop()
    facts = {"window": "1600 x 900", "runs": f"{options.runs}, medians", "browser": f"Chromium {version}, headless"}
    text = report.header("The rule's page in a browser without a graphics card", **facts) + "\n"
    text += f"The goal is {GOAL:.0f} frames a second, which is what the browser offers at most.\n\n"
    report.publish("rule_page", text + report.table(["", "frames a second", "drawing, ms"], rows), options.out)


if __name__ == "__main__":
    main()
