"""The pictures of the pages: digits with wrong labels in the browser, light and dark, and the rule beside itself.

Needs playwright and Chromium: `python examples/browser.py --out docs/pictures`; `--only rule` makes one of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import posterity as po
from posterity.app import Source, from_map, serve
from posterity.learning import Callback, Moment

WRONG = 100
MEASURING = 600_000  # milliseconds that six trainings may take on a busy machine
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
RULE = "#p=gradient-descent&p=newton&p=adam&t=40&look=One+rule,+three+optimizers"
TOP = [(0.03, 0.01), (0.9, 0.01), (0.9, 0.3), (0.03, 0.3)]  # where wrong labels gather, in shares of the plot


class Film(Callback):
    """The map after every other epoch, and the losses beside it."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.data, self.test = data, test
        self.maps: list[pd.DataFrame] = []
        self.losses: list[dict[str, float]] = []

    def epoch(self, moment: Moment) -> None:
        if moment.epoch % 2:
            return
        posterior = po.laplace(moment.model, self.data, prior_precision=1.0)
        columns = po.memory_map(moment.model, posterior, self.data).columns
        self.maps.append(columns[["id", "error", "leverage"]].assign(epoch=moment.epoch))
        moment.model.eval()
        with torch.no_grad():
            train, test = (nn.functional.cross_entropy(moment.model(x), y).item() for x, y in (self.data, self.test))
        moment.model.train()
        mean = float(columns["loo_nll"].mean())
        self.losses.append({"epoch": moment.epoch, "train": train, "test": test, "leave_one_out": mean})


def digits() -> Source:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    pixels, labels = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    data, test = (pixels[:1300], labels[:1300].clone()), (pixels[1300:], labels[1300:])
    data[1][:WRONG] = (data[1][:WRONG] + 3) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    film = Film(data, test)
    po.fit(model, data, method="adamw", epochs=16, lr=3e-3, callbacks=[film])
    m = po.memory_map(model, po.laplace(model, data, prior_precision=1.0), data)
    return from_map(
        m,
        test=test,
        examples=data[0].reshape(-1, 8, 8).numpy(),
        test_examples=test[0].reshape(-1, 8, 8).numpy(),
        title=f"Digits, {WRONG} wrong labels",
        history=pd.concat(film.maps),
        curves=pd.DataFrame(film.losses),
    )


def photograph(url: str, out: Path) -> None:
    from playwright.sync_api import Page, sync_playwright

    def opened(scheme: str) -> Page:
        page = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme).new_page()
        page.goto(url)
        page.wait_for_selector("html[data-drawn]")
        box = page.locator(".plot .over").bounding_box()
        places = [(box["x"] + 58 + (box["width"] - 72) * x, box["y"] + 14 + (box["height"] - 60) * y) for x, y in TOP]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=4)
        page.mouse.up()
        page.mouse.move(640, 780)
        return page

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = opened("light")
        for key in ("ArrowDown", "r", "r", "d", "2"):
            page.keyboard.press(key)
        page.wait_for_timeout(1500)
        page.screenshot(path=out / "browser_gallery.png")
        page = opened("dark")
        page.keyboard.press("w")
        page.wait_for_selector(".answer[data-change]", timeout=MEASURING)
        page.locator(".ask").nth(1).click()
        page.wait_for_selector(".answer:nth-child(2)[data-change]", timeout=MEASURING)
        page.locator(".answer").first.locator(".measure").click()
        page.wait_for_selector(".measured[data-change]", timeout=MEASURING)
        page.wait_for_timeout(500)
        page.screenshot(path=out / "browser_what_if.png")
        browser.close()


def photograph_rule(url: str, out: Path) -> None:
    """Gradient descent, Newton's method and Adam after forty steps."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport={"width": 1600, "height": 900}, color_scheme="light").new_page()
        page.goto(url + RULE)
        page.wait_for_selector("html[data-drawn]")
        page.wait_for_timeout(500)
        page.screenshot(path=out / "rule_page.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--only", choices=["map", "rule"])
    options = parser.parse_args()
    if shutil.which("chromium") is None:
        sys.exit("browser: expected chromium on this machine, got none")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only != "map":
        shown = po.show_rule(browser=False, block=False)
        photograph_rule(shown.url, options.out)
        shown.stop()
    if options.only != "rule":
        served = serve(digits(), browser=False, block=False)
        photograph(served.url, options.out)
        served.stop()


if __name__ == "__main__":
    main()
