"""Every Python block of the README and the documentation runs, top to bottom, page by page."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with warnings.catch_warnings():
        if page.stem == "hosts":
            warnings.simplefilter("ignore")  # Lightning and others warn about what is theirs
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            first_line = page.read_text(encoding="utf-8")[: block.start(1)].count("\n")
            source = "\n" * first_line + block.group(1)
            exec(compile(source, str(page), "exec"), namespace)
