"""The notebooks: the cells of the tutorials, in order, executed without an error."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "notebooks"
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

spec = importlib.util.spec_from_file_location("make_notebooks", FOLDER / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def test_there_is_one_for_each_job():
    assert len(PAGES) == 5
    assert [path.stem for path in sorted(FOLDER.glob("*.ipynb"))] == [page.stem for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_are_those_of_the_page(page):
    book = json.loads((FOLDER / f"{page.stem}.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    wanted = [
        "\n".join(f"!{line}" for line in text.splitlines()) if kind == "sh" else text
        for kind, text in make.cells(page.read_text(encoding="utf-8"))
    ]
    assert ["".join(cell["source"]) for cell in book["cells"]] == wanted, "run: make notebooks"
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] == "stream" for output in outputs)  # an error would be another type


def test_a_cell_that_fails_stops_the_making(tmp_path, monkeypatch):
    (tmp_path / "broken.md").write_text("# Broken\n\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        make.notebook(tmp_path / "broken.md")
