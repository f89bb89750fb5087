"""Every Python block of the documentation runs, top to bottom, page by page; in tutorials the commands too."""

import re
import shlex
import warnings
from pathlib import Path

import pytest

from posterity.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(1800)  # whole tutorials, on machines that others use too
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with warnings.catch_warnings():
        if page.stem == "hosts":
            warnings.simplefilter("ignore")  # Lightning and others warn about what is theirs
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if block[1] == "sh":
                for line in block[2].splitlines() if page.parent.name == "tutorials" else ():
                    assert line.startswith("posterity ")
                    app(shlex.split(line, comments=True)[1:], standalone_mode=False)
                continue
            first_line = page.read_text(encoding="utf-8")[: block.start(2)].count("\n")
            exec(compile("\n" * first_line + block[2], str(page), "exec"), namespace)
