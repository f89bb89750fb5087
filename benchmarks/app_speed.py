"""How fast the memory map is in a browser without a graphics card: first picture, lasso, bytes, what-if.

The points are made up, as many as asked for; what-if is put to a network on digits. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import report
import torch
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_digits
from torch import nn

from posterity.app import Served, Source, from_map, serve
from posterity.learning import fit, laplace
from posterity.memory import memory_map

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--use-angle=swiftshader"]
SHAPE = [(0.2, 0.1), (0.8, 0.1), (0.9, 0.5), (0.8, 0.7), (0.3, 0.8)]
BARS = {"first picture, s": 3.0, "lasso, s": 2.0, "sent, MB": 3.0, "what-if for 500, s": 5.0}
CHOSEN = 500


def made_up(n: int) -> Source:
    """A table that looks like a memory map."""
    rng = np.random.default_rng(0)
    leverage = np.exp(rng.normal(-4, 1.2, n))
    error = 1.41 / (1 + np.exp(-(rng.normal(-0.5, 1.6, n) + 0.6 * np.log(leverage))))
    label = rng.integers(0, 10, n)
    prediction = np.where(error > 0.9, rng.integers(0, 10, n), label)
    loss = -np.log1p(-error / 1.42)
    columns: dict[str, Any] = {"id": np.arange(n), "label": label, "prediction": prediction}
    columns |= {"error": error, "leverage": leverage, "variance": 20 * leverage, "sensitivity": leverage * error}
    columns |= {"self_influence": leverage * error**2, "relevance": 0.4 * error, "loss": loss}
    columns |= {"loo_nll": loss * (1 + leverage), "loo_prediction": prediction}
    columns["suspected_label"] = pd.Series(prediction).astype("Int64").where(prediction != label)
    return Source(pd.DataFrame(columns), title=f"{n} points", classes=tuple("0123456789"))


def digits() -> Source:
    """The map of a small network on digits."""
    x, y = load_digits(return_X_y=True)
    data = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    train, test = (data[0][:1300], data[1][:1300]), (data[0][1300:], data[1][1300:])
    fit(model, train, method="adamw", epochs=15, lr=5e-3)
    return from_map(memory_map(model, laplace(model, train, prior_precision=1.0), train), test=test)


def wait(page: Page, condition: str) -> float:
    """Milliseconds on the page's clock when a condition first holds."""
    look = f"const look = () => ({condition}) ? done(performance.now()) : setTimeout(look, 5); look();"
    return float(page.evaluate(f"() => new Promise((done) => {{ {look} }})"))


def opened(page: Page, served: Served, painter: str) -> None:
    page.goto(served.url)
    page.wait_for_selector("html[data-drawn]")
    page.goto(f"{served.url.split('?')[0]}?painter={painter}")
    page.wait_for_selector("html[data-drawn]")


def drawing(page: Page, served: Served, painter: str) -> dict[str, float]:
    """Seconds to the first picture and for a lasso, and megabytes."""
    opened(page, served, painter)
    first = float(page.evaluate("() => Number(document.documentElement.dataset.drawn)")) / 1000
    sizes = "performance.getEntriesByType('resource').map((r) => r.encodedBodySize)"
    sent = float(page.evaluate(f"() => {sizes}.reduce((a, b) => a + b, 0)")) / 1e6
    box = page.locator(".plot .over").bounding_box()
    assert box is not None
    places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in SHAPE]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.evaluate(
        """() => addEventListener("pointerup", () => {
          window.from = performance.now();
          requestAnimationFrame(() => requestAnimationFrame(() => { window.until = performance.now(); }));
        }, true)"""
    )
    page.mouse.up()
    wait(page, "window.until > 0")
    lasso = float(page.evaluate("() => window.until - window.from")) / 1000
    return {"first picture, s": first, "lasso, s": lasso, "sent, MB": sent}


def asking(page: Page, served: Served) -> float:
    """Seconds from the key to the answer for 500 selected examples."""
    opened(page, served, "auto")
    chosen = f"Uint8Array.from({{ length: m.rows }}, (_, i) => (i < {CHOSEN} ? 1 : 0))"
    page.evaluate(f"() => {{ const m = window.posterity; m.select({chosen}); }}")
    start = time.perf_counter()
    page.keyboard.press("w")
    page.wait_for_selector(".answer[data-change]")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", help="folder for the finished table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("app_speed: expected chromium on this machine, got none")
    many, few = (serve(source, browser=False, block=False) for source in (made_up(options.points), digits()))
    found: dict[str, dict[str, list[float]]] = {"WebGL in software": {}, "by hand": {}}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, "--enable-unsafe-swiftshader"])
        version = browser.version
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        for _ in range(options.runs):
            for painter, results in zip(("webgl", "raster"), found.values()):
                for name, value in drawing(page, many, painter).items():
                    results.setdefault(name, []).append(value)
            found["by hand"].setdefault("what-if for 500, s", []).append(asking(page, few))
        browser.close()
    for served in (many, few):
        served.stop()
    medians = {how: {name: statistics.median(v) for name, v in results.items()} for how, results in found.items()}
    rows = [
        [name, *(f"{m[name]:.2f}" if name in m else "" for m in medians.values()), bar] for name, bar in BARS.items()
    ]
    facts = {"points": options.points, "runs": f"{options.runs}, medians", "browser": f"Chromium {version}, headless"}
    text = report.header("The memory map in a browser without a graphics card", **facts) + "\n"
    report.publish("app_speed", text + report.table(["", *medians, "at most"], rows), options.out)
    late = [name for m in medians.values() for name, v in m.items() if v > BARS[name]]
    sys.exit(f"over the bar: {late}" if late else 0)


if __name__ == "__main__":
    main()
