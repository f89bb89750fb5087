"""Which tests cover which module, read from the imports: `python tests/covering.py [part of a name]` prints the table.

A test file covers the modules whose names it imports, directly or through a package that hands them on, and, further
away, what those import. Each module is listed with the test files that come nearest to it, those of its own room first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "posterity"
MODULES = {".".join(path.relative_to(SRC).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}
TEST_FILES = sorted(TESTS.rglob("test_*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Of a file, the nodes that tell what it uses and hands on."""
    telling = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Dict)
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, telling)]


@cache
def module(name: str) -> str | None:
    """The module of a dotted name below `posterity`: the file itself, or the front of a package."""
    return next((known for known in (name, f"{name}.__init__".lstrip(".")) if known in MODULES), None)


@cache
def imported(path: Path) -> frozenset[tuple[str, str]]:
    """Every (module below `posterity`, name) that a file imports; attributes of `po` and of rooms count."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, str]]:
    rooms = {"po": "", "posterity": ""}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "posterity":
            base = node.module.removeprefix("posterity").lstrip(".")
            for alias in node.names:
                yield base, alias.name
                if module(f"{base}.{alias.name}".lstrip(".")) is not None:
                    rooms[alias.asname or alias.name] = f"{base}.{alias.name}".lstrip(".")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("posterity."):
                    yield alias.name.removeprefix("posterity."), ""
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted[0] in rooms:
                *above, name = [part for part in (rooms[dotted[0]], *dotted[1:]) if part]
                yield ".".join(above), name


def _dotted(node: ast.AST) -> list[str]:
    """The parts of a.b.c; where it begins with anything but a name, an empty one comes first."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


@cache
def handed_on(package: str) -> dict[str, str]:
    """Names that a package imports from its modules, and where they stand; the front door says so in a table."""
    path = MODULES[module(package) or "__init__"]
    found = {name: base for base, name in imported(path) if base}
    for node in nodes(path):
        if isinstance(node, ast.Dict):  # lazy exports: name -> module
            pairs = [(k, v) for k, v in zip(node.keys, node.values) if isinstance(k, ast.Constant)]
            texts = {str(k.value): str(v.value) for k, v in pairs if isinstance(v, ast.Constant)}
            where = {name: f"{package}.{base}".lstrip(".") for name, base in texts.items()}
            found |= {name: base for name, base in where.items() if module(base)}
    return found


@cache
def home(base: str, name: str) -> str | None:
    """The module that a name imported from a module or package comes from."""
    direct = module(f"{base}.{name}".strip("."))
    if direct is not None and not direct.endswith("__init__"):
        return direct
    here = module(base)
    if here is not None and not here.endswith("__init__"):
        return here
    further = handed_on(base).get(name)
    return home(further, name) if further is not None and further != base else here


@cache
def uses(name: str) -> frozenset[str]:
    """The modules that a module imports something from."""
    return frozenset(found for base, what in imported(MODULES[name]) if (found := home(base, what)) is not None)


def helpers(test: Path) -> Iterator[Path]:
    """The files of the tests that a test file imports."""
    for node in nodes(test):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = (TESTS / node.module.replace(".", "/")).with_suffix(".py")
            if path.exists():
                yield path


def distances(test: Path) -> dict[str, int]:
    """How far each module is from a test file: 0 where the test names it, 1 where such a module imports it, ..."""
    edge = {found for path in (test, *helpers(test)) for base, what in imported(path) if (found := home(base, what))}
    seen: dict[str, int] = {}
    step = 0
    while edge:
        seen |= dict.fromkeys(edge, step)
        edge, step = {found for name in edge for found in uses(name)} - seen.keys(), step + 1
    return seen


@cache
def room(test: Path) -> str:
    """The room that a test stands in: tests/ROOM/ or tests/test_ROOM.py."""
    return test.relative_to(TESTS).parts[0].removesuffix(".py").removeprefix("test_")


def own(test: Path, name: str) -> bool:
    """Whether a test stands in the room of a module."""
    return room(test) == name.split(".")[0]


def table() -> dict[str, list[tuple[int, Path]]]:
    """For each module with code of its own, distance and test files, nearest first and its own room before others."""
    found: dict[str, list[tuple[int, Path]]] = {name: [] for name in MODULES if not name.endswith("__init__")}
    for test in TEST_FILES:
        for name, distance in distances(test).items():
            if name in found:
                found[name].append((distance, test))
    for name, tests in found.items():
        stem = name.split(".")[-1].strip("_")
        tests.sort(key=lambda entry: (not own(entry[1], name), entry[0], stem not in entry[1].stem, entry[1]))
    return found


def nearest(name: str, tests: list[tuple[int, Path]]) -> list[Path]:
    """Of the tests of a module, those that come nearest, in its own room if it has any there."""
    first = tests[0] if tests else (0, TESTS)
    return [test for distance, test in tests if distance == first[0] and own(test, name) == own(first[1], name)]


if __name__ == "__main__":
    for name, tests in table().items():
        if all(word in name for word in sys.argv[1:]):
            print(f"{name:40}", *(path.relative_to(TESTS) for path in nearest(name, tests)[:4]))
