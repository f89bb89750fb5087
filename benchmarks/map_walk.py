"""Ten wrong labels, found and corrected in the served map by a user who reads the page and nothing else.

Digits of scikit-learn are written as pictures in folders, or its breast cancer data as a table, with ten wrong labels
among 400 examples; 100 others are the test. `posterity fit` and `posterity map --serve` run with their defaults.
Chromium opens the page, and a walker goes through the table as it comes, from the top: it looks at the example, keeps
the label where it is right, presses the button "Relabel as" where this proposes the right one, and chooses in the
list otherwise. Its eyes are the true labels. It stops after the tenth wrong label. The table counts rows looked at,
clicks, and the corrections that took the button. A person who needs six seconds a row has five minutes for fifty
rows.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import report
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

TRAIN, TEST, WRONG = 400, 100, 10
KINDS = ("malignant", "benign")
MOST = 200  # rows after which the walker gives up


Labels = list[tuple[str, str]]  # the given and the true one of each training example, by its number


def drawn(load: Callable[..., Any], seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Some examples: their numbers, the labels that are given, and the true ones."""
    x, y = load(return_X_y=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(y))[: TRAIN + TEST]
    x, y = x[order], y[order]
    given, classes = y.copy(), int(y.max()) + 1
    wrong = draw.choice(TRAIN, WRONG, replace=False)
    given[wrong] = (y[wrong] + draw.integers(1, classes, WRONG)) % classes
    return x, given, y


def pictures(folder: Path, seed: int) -> tuple[list[str], Labels]:
    """Write digits as pictures; returns the words for `fit`, and the labels."""
    x, given, y = drawn(load_digits, seed)
    truth = {}
    for k in range(TRAIN + TEST):
        path = folder / ("train" if k < TRAIN else "test") / str(given[k]) / f"{k:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[k].reshape(8, 8) * 255 / 16).astype(np.uint8)).save(path)
        if k < TRAIN:
            truth[f"{given[k]}/{path.name}"] = (str(given[k]), str(y[k]))
    return ["train", "--test", "test"], [truth[name] for name in sorted(truth)]


def table(folder: Path, seed: int) -> tuple[list[str], Labels]:
    """Write cells as a table; returns the words for `fit`, and the labels."""
    x, given, y = drawn(load_breast_cancer, seed)
    rows = pd.DataFrame(x, columns=load_breast_cancer().feature_names)
    rows["diagnosis"] = [KINDS[label] for label in given]
    rows[:TRAIN].to_csv(folder / "train.csv", index=False)
    rows[TRAIN:].to_csv(folder / "test.csv", index=False)
    words = ["train.csv", "--test", "test.csv", "--target", "diagnosis"]
    return words, [(KINDS[a], KINDS[b]) for a, b in zip(given[:TRAIN], y)]


SETS = {"pictures of digits": pictures, "table of cells": table}


def served(folder: Path, words: list[str], seed: int) -> tuple[subprocess.Popen[str], str]:
    """A run on these data, its map in a server, and the address of the page."""
    here = [sys.executable, "-m", "posterity"]
    fit = ["fit", *words, "--out", "run", "--seed", str(seed), "--json"]
    subprocess.run([*here, *fit], cwd=folder, check=True, capture_output=True)
    show = [*here, "map", "run", "--serve", "--no-browser"]
    server = subprocess.Popen(show, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in server.stderr or ():
        found = re.search(r"http://\S+", line)
        if found:
            return server, found.group()
    raise SystemExit("posterity map: expected the address of a page, got none")


def walk(page: Any, labels: Labels) -> report.Line:
    """Go through the table from its top until every wrong label is corrected."""
    clicks = buttons = rows = corrected = 0
    started = time.perf_counter()
    page.locator(".table .tr").first.click()
    clicks += 1
    while rows < MOST and corrected < WRONG:
        rows += 1
        number = page.locator(".detail h2").inner_text().split()[0]
        label, true = labels[int(number.removeprefix("#"))]
        if label == true:
            page.locator(".detail .act.keep").click()
            clicks += 1
        else:
            button = page.locator(".detail .act.relabel")
            if button.count() and button.inner_text().split()[-2] == true:  # the last word is its key
                button.click()
                clicks, buttons = clicks + 1, buttons + 1
            else:
                page.locator(".detail select").select_option(true)
                clicks += 2
            corrected += 1
        page.locator(f".detail h2:not(:has-text('{number} '))").wait_for()
    seconds = time.perf_counter() - started
    page.locator("#bar", has_text=f"relabel {corrected}").wait_for()
    return {"rows": rows, "found": corrected, "clicks": clicks + 1, "buttons": buttons, "seconds": seconds}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    flags = ["--no-sandbox", "--disable-gpu", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    for name, seed in itertools.product(SETS, options.seeds):
        with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
            words, labels = SETS[name](Path(place), seed)
            server, address = served(Path(place), words, seed)
            try:
                browser = playwright.chromium.launch(executable_path=chromium, args=flags)
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.goto(address)
                page.wait_for_selector("html[data-drawn]")
                yield {"data": name, "seed": seed, **walk(page, labels)}
                browser.close()
            finally:
                server.terminate()
                server.wait()


def publish(lines: list[report.Line], out: str | None) -> None:
    text = report.header("Ten wrong labels in the map", lines)
    columns = [
        "data",
        "seed",
        "wrong labels corrected",
        "rows looked at",
        "clicks",
        "by the button",
        "seconds of the script",
    ]
    rows = [
        [
            line["data"],
            line["seed"],
            f"{line['found']} of {WRONG}",
            line["rows"],
            line["clicks"],
            line["buttons"],
            f"{line['seconds']:.0f}",
        ]
        for line in lines
    ]
    report.publish("map_walk", text + "\n" + report.table(columns, rows), out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options.out)


if __name__ == "__main__":
    main()
