"""A small map of digits, some with wrong labels, served to requests and to a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from app.raw import Raw
from posterity.app import Served, Source, from_map, serve
from posterity.learning import laplace
from posterity.memory import MemoryMap, memory_map
from small_data import handwritten_digits

WRONG = 12  # the first labels are wrong
Split = tuple[Tensor, Tensor]


@pytest.fixture(scope="session")
def digits() -> tuple[Split, Split]:
    x, y = handwritten_digits()
    y[:WRONG] = (y[:WRONG] + 3) % 10
    return (x[:240], y[:240]), (x[1400:1500], y[1400:1500])


@pytest.fixture(scope="session")
def maps(digits: tuple[Split, Split]) -> list[MemoryMap]:
    """The map after a few steps of training, and at the end."""
    train, _ = digits
    torch.manual_seed(0)
    model, found = nn.Linear(64, 10), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for steps in (8, 150):
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[0]), train[1]).backward()
            optimizer.step()
        posterior = laplace(model, train, structure="kron", prior_precision=1.0)
        found.append(memory_map(model, posterior, train))
    return found


@pytest.fixture(scope="session")
def source(digits: tuple[Split, Split], maps: list[MemoryMap]) -> Source:
    (x, _), test = digits
    early, m = maps
    history = pd.concat(
        [one.columns[["id", "error", "leverage"]].assign(epoch=k) for k, one in zip((1, 20), (early, m))]
    )
    curves = pd.DataFrame({"epoch": [1, 20], "train": [2.0, 0.4], "test": [2.1, 0.5], "leave_one_out": [2.2, 0.6]})
    change = np.linspace(-0.1, 0.1, 30)
    return from_map(
        m,
        test=test,
        examples=x.reshape(-1, 8, 8).numpy(),
        test_examples=test[0].reshape(-1, 8, 8).numpy(),
        title="Digits",
        history=history,
        curves=curves,
        beside=early,
        beside_title="early",
        outcome=pd.DataFrame({"id": np.arange(30), "predicted": change, "actual": 0.9 * change}),
    )


@pytest.fixture(scope="session")
def served(source: Source) -> Iterator[Served]:
    running = serve(source, browser=False, block=False)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def running_chromium() -> Iterator[Any]:
    """Chromium, drawing in software; skipped where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield running
        running.close()


@pytest.fixture
def browser(running_chromium: Any) -> Iterator[Any]:
    """A browser without open windows, whatever an earlier test left behind."""
    yield running_chromium
    for context in running_chromium.contexts:
        context.close()


@pytest.fixture(scope="session")
def raw(served: Served) -> Raw:
    return Raw(served.url)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    """A CSV file of digits in a folder of its own."""
    x, y = load_digits(return_X_y=True)
    table = pd.DataFrame(x[:200, ::3], columns=[f"p{k}" for k in range(len(x[0, ::3]))]).assign(digit=y[:200])
    table.to_csv(tmp_path / "digits.csv", index=False)
    return tmp_path
