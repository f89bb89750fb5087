"""Every picture of the gallery is drawn by a script, and every script runs, at a small size."""

import runpy
import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
FILMS = ROOT / "examples" / "films.py"
SCRIPTS = [
    path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path != FILMS and "from common import" in path.read_text()
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Scripts set threads and read the command line once: give both back afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield
    torch.set_num_threads(threads)
    for path in (ROOT / "examples").glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*of the Hessian.*")  # runs this short leave the Hessian where it began
def test_example_draws_its_picture(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(tmp_path), "--small"])
    runpy.run_path(str(script), run_name="__main__")
    pictures = list(tmp_path.glob("*.png"))
    assert script.stem in {picture.stem for picture in pictures}
    for picture in pictures:
        assert matplotlib.image.imread(picture)[..., :3].std() > 0.02  # not an empty page


@pytest.mark.parametrize("name", ["polynomial", "logistic", "modes", "memory", "adaptation"])
def test_films_are_made(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(FILMS), "--out", str(tmp_path), "--small", "--only", name])
    runpy.run_path(str(FILMS), run_name="__main__")
    with Image.open(tmp_path / f"film_{name}.gif") as film:
        assert film.n_frames >= 2


def test_the_gallery_shows_every_example():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert f"`examples/{script.name}`" in gallery, script.name
        assert f"pictures/{script.stem}.png" in gallery, script.name
