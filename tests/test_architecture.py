"""docs/architecture.md: the walks happen as written, and the recipes work on a copy of the source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import posterity as po
import test_house as house
from posterity.cli import app
from posterity.optim import IVON

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "posterity"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
RECIPES = ("an optimizer", "a structure", "a likelihood", "a merging method", "a row to Table 1")


def section(heading: str) -> str:
    """The text under a heading, up to the next one of its level."""
    level = heading.split(" ")[0]
    return re.split(rf"^#{{2,{len(level)}}} ", PAGE.partition(f"\n{heading}")[2], maxsplit=1, flags=re.MULTILINE)[0]


def walk(number: int) -> list[str]:
    found = re.findall(r"^\d+\. `([\w/]+\.py::[\w.]+)`", section(f"## Walk {number}: "), re.MULTILINE)
    assert len(found) > 8
    return found


def called(act: Callable[[], object]) -> list[str]:
    """Functions of the package in the order of their first calls."""
    seen: dict[str, None] = {}

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(SRC)):
            path = Path(frame.f_code.co_filename).relative_to(SRC).as_posix()
            seen.setdefault(f"{path}::{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return list(seen)


def happens(number: int, act: Callable[[], object]) -> None:
    steps, calls = walk(number), called(act)
    assert [step for step in steps if step not in calls] == []
    assert sorted(steps, key=calls.index) == steps


@pytest.fixture(scope="module")
def trained():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(3, 2)
    return model, po.laplace(model, (x, y), prior_precision=1.0), (x, y)


def test_the_floors_are_those_of_the_house():
    rows = re.findall(r"^\| \w+ \| ((?:`\w+` ?)+) \|", section("## Floors"), re.MULTILINE)
    assert [tuple(re.findall(r"\w+", row)) for row in rows] == [tuple(floor.split()) for floor in house.FLOORS]


def test_a_step_of_ivon(trained):
    model, _, (x, y) = trained
    optimizer = IVON(model.parameters(), lr=0.1, ess=30, betas=(0.9, 0.9), fused=False)

    def act():
        with optimizer.sampled_params(train=True):
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.posterior(model, likelihood="categorical", n=30)

    for _ in range(20):  # enough to have learnt a width, so that the posterior warns of nothing
        with optimizer.sampled_params(train=True):
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    happens(1, act)


def test_a_memory_map(trained):
    model, posterior, data = trained
    happens(2, lambda: po.memory_map(model, posterior, data))


def test_from_a_csv_to_the_browser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(40)]
    Path("table.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")

    def act():
        app(
            ["fit", "table.csv", "--target", "y", "--out", "run", "--epochs", "1", "--folds", "0", "--model", "linear"],
            standalone_mode=False,
        )
        app(["map", "run", "--html", "map.html"], standalone_mode=False)

    happens(3, act)
    assert "Memory map" in Path("map.html").read_text()


BLOCK = re.compile(r'^```(python|diff) title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


def applied(copy: Path, kind: str, title: str, text: str) -> None:
    """Do to a copy of the source what a block of a recipe says."""
    path = copy / title
    if kind == "python":
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
        return
    lines = text.splitlines()
    old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    source = path.read_text(encoding="utf-8")
    assert f"\n{source}".count(f"\n{old}\n") == 1, f"{title}: expected once\n{old}"
    path.write_text(f"\n{source}".replace(f"\n{old}\n", f"\n{new}\n")[1:], encoding="utf-8")


def test_the_recipes_work(tmp_path, monkeypatch):
    shutil.copytree(SRC, tmp_path / "src" / "posterity", ignore=shutil.ignore_patterns("__pycache__"))
    uses = []
    for recipe in RECIPES:
        blocks = BLOCK.findall(section(f"### Add {recipe}"))
        assert sum(title == "use" for _, title, _ in blocks) == 1, recipe
        for kind, title, text in blocks:
            if title == "use":
                uses.append(text)
            else:
                applied(tmp_path, kind, title, text)
    (tmp_path / "use.py").write_text("\n".join(uses), encoding="utf-8")
    settings = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"}
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for words in (
        ["-m", "ruff", "check", "src"],
        ["-m", "ruff", "format", "--check", "src"],
        ["-W", "error", "use.py"],
    ):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    monkeypatch.setattr(house, "SRC", tmp_path / "src" / "posterity")
    for path in sorted((tmp_path / "src" / "posterity").rglob("*.py")):
        if path.name in {"fixed_width.py", "box.py", "exponential.py", "median.py"}:
            assert list(house.imports_from_below(path)) == []
            assert list(house.too_long_or_silent(path)) == []
