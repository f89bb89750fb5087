"""Make the notebooks: each tutorial of docs/tutorials, executed, with what it printed.

python examples/notebooks/make.py [NAME ...]

The pages are the source. Blocks of Python and of the shell become cells; nothing but this package is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parents[1] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
LONGEST = 4000  # characters of one output


def cells(text: str) -> Iterator[tuple[str, str]]:
    """The cells of a page: "markdown", "python" or "sh", and their text."""
    text = re.sub(r"\]\(\.\./([^)]+)\)", r"](../../docs/\1)", text)
    end = 0
    for block in BLOCK.finditer(text):
        if text[end : block.start()].strip():
            yield "markdown", text[end : block.start()].strip()
        yield block[1], block[2].strip()
        end = block.end()
    if text[end:].strip():
        yield "markdown", text[end:].strip()


def run(kind: str, source: str, names: dict[str, Any]) -> str:
    """What a cell prints."""
    from posterity.cli import app

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        if kind == "python":
            exec(compile(source, "notebook", "exec"), names)
        else:
            for line in source.splitlines():
                app(shlex.split(line, comments=True)[1:], standalone_mode=False)
    return said.getvalue().replace(f"{os.getcwd()}{os.sep}", "")  # the folder is gone when the notebook is read


def notebook(page: Path) -> dict[str, Any]:
    """A page as a notebook, executed in a folder of its own."""
    made: list[dict[str, Any]] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (kind, text) in enumerate(cells(page.read_text(encoding="utf-8"))):
        one: dict[str, Any] = {"id": hashlib.sha256(f"{number} {text}".encode()).hexdigest()[:8], "metadata": {}}
        if kind == "markdown":
            made.append({"cell_type": "markdown", **one, "source": text.splitlines(keepends=True)})
            continue
        source = text if kind == "python" else "\n".join(f"!{line}" for line in text.splitlines())
        said = run(kind, text, names)
        said = said if len(said) <= LONGEST else said[:LONGEST] + "\n..."
        outputs = [{"output_type": "stream", "name": "stdout", "text": said.splitlines(keepends=True)}] if said else []
        count = 1 + sum(cell["cell_type"] == "code" for cell in made)
        made.append(
            {
                "cell_type": "code",
                **one,
                "execution_count": count,
                "outputs": outputs,
                "source": source.splitlines(keepends=True),
            }
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", help="tutorials; all by default")
    arguments.add_argument("--check", action="store_true", help="only execute, and write nothing")
    given = arguments.parse_args()
    os.environ.setdefault("COLUMNS", "120")
    for page in [PAGES / f"{name}.md" for name in given.names] or sorted(PAGES.glob("*.md")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            try:
                made = notebook(page)
            except BaseException:
                traceback.print_exc()
                raise SystemExit(f"{page.name}: a cell failed") from None
        if not given.check:
            path = HERE / f"{page.stem}.ipynb"
            path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{page.stem}: {len(made['cells'])} cells")


if __name__ == "__main__":
    main()
