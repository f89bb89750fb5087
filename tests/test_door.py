"""What a contributor meets first: one version, workflows that only call make, commands and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import posterity

ROOT = Path(__file__).parent.parent
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SETTINGS = [*WORKFLOWS, *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ROOT / ".pre-commit-config.yaml"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert project["version"] == posterity.__version__ == yaml.safe_load(text("CITATION.cff"))["version"]
    assert posterity.__version__ in re.findall(
        r"^## (?:Unreleased: )?(\d+\.\d+\.\d+)", text("CHANGELOG.md"), re.MULTILINE
    )
    assert ".".join(posterity.__version__.split(".")[:2]) in text("SECURITY.md")


def test_the_changelog_has_three_kinds_of_entries():
    for part in re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert kinds
        assert sorted(set(kinds)) == kinds, "each of Added, Changed, Fixed once, in this order"
        assert set(kinds) <= {"Added", "Changed", "Fixed"}


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_settings_are_yaml(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_only_call_make(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [step for job in content["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    matrix = [
        target
        for job in content["jobs"].values()
        for target in job.get("strategy", {}).get("matrix", {}).get("target", ())
    ]
    called = [match[1] for command in commands if (match := re.fullmatch(r"make (\S.*)", command))]
    assert called
    assert {target for target in called if "matrix" not in target} | set(matrix) <= TARGETS
    assert all(command.startswith(("make ", "gh release create ")) for command in commands)


def test_tests_run_on_every_supported_python():
    versions = set(re.findall(r"Python :: (3\.\d+)", text("pyproject.toml")))
    assert (
        set(yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]["tests"]["strategy"]["matrix"]["python"])
        == versions
    )


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", ".github/pull_request_template.md"])
def test_commands_and_files_of_the_door_exist(page):
    assert set(re.findall(r"\bmake (\w+)\b(?= |`|\)|$)", text(page), re.MULTILINE)) <= TARGETS
    for path in re.findall(r"`((?:tests|docs|benchmarks|src|\.github)/[\w./]*)`", text(page)):
        assert (ROOT / path).exists(), path
