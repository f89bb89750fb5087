"""The README as it stands: every Python block and every command, with the packages it tells people to install."""

from __future__ import annotations

import importlib.metadata as installed
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

# One process for all blocks: names of earlier Python blocks are known to later ones, as to somebody who pastes them.
DRIVER = """
import json, runpy, shlex, sys
names = {}
for kind, text in json.load(open("blocks.json", encoding="utf-8")):
    if kind == "python":
        exec(compile(text, "README.md", "exec"), names)
        continue
    from posterity.cli import main
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "posterity", words
        sys.argv = words
        try:
            main()
        except SystemExit as stopped:
            assert not stopped.code, (line, stopped.code)
json.dump(sorted({name.partition(".")[0] for name in sys.modules}), open("imported.json", "w"))
"""


def allowed(extras: set[str]) -> set[str]:
    """Names of all distributions that the package and some of its extras bring along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    found: set[str] = set()
    queue = [Requirement(line) for line in wanted]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name == "posterity":
            queue += [Requirement(line) for e in requirement.extras for line in project["optional-dependencies"][e]]
        if name in found or name == "posterity":
            continue
        try:
            more = installed.requires(name) or []
        except installed.PackageNotFoundError:  # for another platform
            continue
        found.add(name)
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        parsed = [Requirement(line) for line in more]
        queue += [r for r in parsed if r.marker is None or any(r.marker.evaluate(e) for e in environments)]
    return found


def site(folder: Path, names: set[str]) -> Path:
    """A folder that holds exactly these distributions, as links to where they are installed."""
    folder.mkdir()
    for name in names:
        for file in installed.files(name) or []:
            first = file.parts[0]
            there = Path(str(file.locate())).parents[len(file.parts) - 2] if len(file.parts) > 1 else file.locate()
            if first not in ("..", "__pycache__") and not (folder / first).exists() and Path(str(there)).exists():
                (folder / first).symlink_to(str(there))
    return folder


def wheel(folder: Path) -> Path:
    """The wheel, unpacked; where the build backend is not installed, what its settings put into the wheel."""
    folder.mkdir()
    if importlib.util.find_spec("hatchling") is None:
        shutil.copytree(ROOT / "src" / "posterity", folder / "posterity", ignore=shutil.ignore_patterns("__pycache__"))
        return folder
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as packed:
        packed.extractall(folder)
    return folder


@pytest.mark.timeout(600)
def test_the_readme_as_pasted(tmp_path):
    extras = set(re.search(r"pip install '\.\[([a-z,]+)\]'", README)[1].split(","))
    names = allowed(extras)
    assert {"torch", "scikit-learn", "matplotlib"} <= names
    assert not {"pyarrow", "transformers", "pytest"} & names
    paths = [str(wheel(tmp_path / "wheel")), str(site(tmp_path / "site", names))]
    (tmp_path / "blocks.json").write_text(json.dumps(BLOCKS))
    (tmp_path / "driver.py").write_text(f"import sys\nsys.path[:0] = {paths!r}\n{DRIVER}")
    # -S and -E: nothing of this environment but what the README names.
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-W", "ignore", "driver.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    imported = json.loads((tmp_path / "imported.json").read_text())
    assert "pyarrow" not in imported
    suspects = pd.read_csv(tmp_path / "suspects.csv")
    marked = suspects["decision"] != "keep"
    assert marked.any()
    assert (suspects["id"][marked] % 12 == 0).mean() > 0.5  # where wrong labels were planted
    assert len(pd.read_csv(tmp_path / "answers.csv")) == 178
    assert "Suspected labels" in (tmp_path / "wine" / "report.html").read_text(encoding="utf-8")
