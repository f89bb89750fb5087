"""Mutated source code: `python tests/mutants.py optim --count 200`.

Each mutant is the package with one small edit: an operator, a comparison, a number, a condition or a statement. The
tests of that package should fail on it. Mutants that survive are printed with their place and their edit; the exit
status is 1 where fewer than nine of ten die. Places are chosen at random by a seed, so that a run can be repeated.

The tests run once under a trace, which tells which of them run a line; a mutant gets those first, and last those that
start processes of their own, which no trace sees into. Mutants run in processes forked from this one, which has
imported what takes long.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "posterity"
PACKAGES = ("optim", "posterior", "memory", "adaptation", "merging")
SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.FloorDiv: ast.Mult, ast.MatMult: ast.Add,
}  # fmt: skip
# Their arguments are words for people; a mutant in one is no fault.
SPEECH = {"expected", "require", "warn", "InvalidInput", "RefusedFile", "Undefined", "MissingExtra", "track", "say"}


class Mutant(NamedTuple):
    """An edit of a file: the lines of its statement, what it is, and the whole code with it."""

    path: Path
    line: int
    end: int
    edit: str
    code: str

    @property
    def name(self) -> str:
        """What it is called, wherever its line has moved to."""
        return f"{self.path.relative_to(SOURCE)}: {self.edit}"


def mutant_of(path: Path, number: int) -> Mutant:
    """One mutant of a file, by the number of its place."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node, what = list(_places(tree))[number]
    before, (line, end) = ast.unparse(node), _extent(tree, node)
    _edit(node, what)
    return Mutant(path, line, end, f"{_brief(before)} -> {_brief(ast.unparse(node))}", ast.unparse(tree))


def _extent(tree: ast.AST, node: ast.AST) -> tuple[int, int]:
    """First and last line of the innermost statement around a node; of an `if` or a loop, those of its head."""
    around = [
        s for s in ast.walk(tree) if isinstance(s, ast.stmt) and s.lineno <= node.lineno <= (s.end_lineno or s.lineno)
    ]
    inner = max(around, key=lambda s: (s.lineno, -(s.end_lineno or s.lineno)))
    body = getattr(inner, "body", None)
    return inner.lineno, max(inner.lineno, body[0].lineno - 1) if body else inner.end_lineno or inner.lineno


def _brief(code: str) -> str:
    return repr(code if len(code) <= 100 else code[:97] + "...")


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes that can be edited, and what of them, in a fixed order."""
    for node in _spoken(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED and not _is_type(node):
            yield node, "op"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
            yield node, "ops"
        elif isinstance(node, ast.BoolOp):
            yield node, "op"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            yield node, "value"
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield node, "test"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            yield node, "operand"
        elif isinstance(node, (ast.Expr, ast.AugAssign)) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield node, "statement"


def _spoken(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, docstrings, decorators, assertions and what is said to people."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(tree, ast.keyword) and tree.arg == "strict":  # lengths that are equal are said to be
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Call) and _called(child) in SPEECH:
                continue
            if isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
                continue
            yield child
            yield from _spoken(child)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _is_type(node: ast.BinOp) -> bool:
    """Whether it is a union of types, X | None."""
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right)
    )


def _edit(node: ast.AST, what: str) -> None:
    if what == "op":
        node.op = SWAPPED[type(node.op)]()  # type: ignore[attr-defined]
    elif what == "ops":
        node.ops = [SWAPPED[type(node.ops[0])]()]  # type: ignore[attr-defined]
    elif what == "value":
        value = node.value  # type: ignore[attr-defined]
        node.value = (not value) if isinstance(value, bool) else value + 1  # type: ignore[attr-defined]
    elif what == "test":
        node.test = ast.UnaryOp(ast.Not(), node.test)  # type: ignore[attr-defined]
    elif what == "operand":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else node.op  # type: ignore[attr-defined]
        if isinstance(node.op, ast.Not):  # type: ignore[attr-defined]
            node.operand = ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]
    else:
        node.value = ast.Constant(0)  # type: ignore[attr-defined]
        if isinstance(node, ast.AugAssign):
            node.op = ast.Add()
    ast.fix_missing_locations(node)


def chosen(package: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a package, each place as likely as any other."""
    files = sorted((SOURCE / package).rglob("*.py"))
    every = [(path, k) for path in files for k in range(len(list(_places(ast.parse(path.read_text("utf-8"))))))]
    return [mutant_of(*place) for place in random.Random(f"{seed}{package}").sample(every, min(count, len(every)))]


def known() -> dict[str, str]:
    """Mutants that change nothing that a test could hold, and why: a line of `tests/equivalent.txt` each."""
    lines = (ROOT / "tests" / "equivalent.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("  # ", 1) for line in lines if "  # " in line)


# ── which tests run a line ───────────────────────────────────────────────────────────────────────────────────────


class Lines:
    """A plugin of pytest: which lines of a package each test runs, how long it takes, and whether it passes.

    The last entry about a test tells whether it starts processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.tests: dict[str, tuple[float, set[tuple[str, int]], bool]] = {}
        self.failed: list[str] = []
        self._now: set[tuple[str, int]] = set()
        self._starts = False
        sys.addaudithook(self._heard)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now, self._starts = set(), False
        began = time.perf_counter()
        sys.settrace(self._called)
        yield
        sys.settrace(None)
        self.tests[item.nodeid] = time.perf_counter() - began, self._now, self._starts

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def _heard(self, event: str, _: object) -> None:
        self._starts = self._starts or event == "subprocess.Popen"

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._ran if frame.f_code.co_filename.startswith(self.folder) else None

    def _ran(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._now.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran


class Chosen:
    """A plugin of pytest: some tests alone, those of quick files first."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self.tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.tests]
        costs: Counter[str] = Counter()
        for item in kept:
            costs[item.nodeid.split("::")[0]] += self.tests[item.nodeid]
        items[:] = sorted(kept, key=lambda item: costs[item.nodeid.split("::")[0]])


class Package:
    """A package with its tests, in a copy of the source that mutants are written into.

    Args:
        name: The package.
        scratch: A folder for the copy.
    """

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self.source = name, scratch / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        self.seconds: dict[str, float] = {}
        self.tests: dict[tuple[str, int], set[str]] = {}
        self.starting: set[str] = set()  # tests that start processes
        lines = in_a_child(self._look, 7200.0)
        if not isinstance(lines, dict):
            sys.exit(f"tests of {name}: expected all to pass on the package as it is, got {lines}")
        for test, (seconds, ran, starts) in lines.items():
            self.seconds[test] = seconds
            self.starting |= {test} if starts else set()
            for file, line in ran:
                self.tests.setdefault((file, line), set()).add(test)

    def _look(self) -> Any:
        plugin = Lines(self.source / "posterity" / self.name)
        self._pytest([f"tests/{self.name}"], plugin)
        return plugin.failed or {test: (s, sorted(ran), p) for test, (s, ran, p) in plugin.tests.items()}

    def _pytest(self, paths: Iterable[str], plugin: object) -> int:
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self.source), str(ROOT / "tests")])
        os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
        sys.path[:0] = [str(self.source), str(ROOT / "tests")]
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths], plugins=[plugin]))

    def survives(self, mutant: Mutant) -> bool:
        """Whether all tests pass on a mutant: those that run its lines, all in their files, those that start others."""
        place = self.source / "posterity" / mutant.path.relative_to(SOURCE)
        real = place.read_text(encoding="utf-8")
        place.write_text(mutant.code, encoding="utf-8")
        try:
            own = {line: tests for (file, line), tests in self.tests.items() if file == str(place)}
            near = {test for line in range(mutant.line, mutant.end + 1) for test in own.get(line, ())}
            near = near or {test for tests in own.values() for test in tests}  # a line that runs at the import alone
            files = {test.split("::")[0] for test in near}  # the fixture of a file runs in the first test of it alone
            wider = {test for test in self.seconds if test.split("::")[0] in files} if near else set(self.seconds)
            return all(self._pass(tests) for tests in (near, wider - near, self.starting - wider - near) if tests)
        finally:
            place.write_text(real, encoding="utf-8")

    def _pass(self, tests: Iterable[str]) -> bool:
        chosen = {test: self.seconds[test] for test in tests}
        paths = sorted({test.split("::")[0] for test in chosen})
        limit = 60.0 + 10.0 * sum(chosen.values())
        return in_a_child(lambda: self._pytest(paths, Chosen(chosen)), limit) == 0


def in_a_child(work: Callable[[], Any], seconds: float) -> Any:
    """What a function returns in a process of its own; None where it takes too long or dies."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if child == 0:
            try:
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), 1)
                    os.dup2(nowhere.fileno(), 2)
                os.setsid()  # so that processes of a test end with it
                answer.write_text(json.dumps(work()), encoding="utf-8")
            finally:
                os._exit(0)
        until = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.05)
        return json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None


def main() -> None:
    """Run the tests on mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+", choices=PACKAGES)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="begin with a later mutant of the same choice")
    given = parser.parse_args()
    poor, equivalent = False, known()
    for name in given.packages:
        with tempfile.TemporaryDirectory() as folder:
            package = Package(name, Path(folder))
            picked, alive, same = chosen(name, given.count, given.seed)[given.skip :], 0, 0
            for number, mutant in enumerate(picked, given.skip):
                if mutant.name in equivalent:
                    same += 1
                elif package.survives(mutant):
                    alive += 1
                    print(f"{number} alive at line {mutant.line}: {mutant.name}", flush=True)
                else:
                    print(f"{number} dead", file=sys.stderr, flush=True)
        counted = len(picked) - same
        print(f"{name}: {counted - alive} of {counted} mutants died, {same} are equivalent", flush=True)
        poor = poor or alive > 0.1 * counted
    sys.exit(int(poor))


if __name__ == "__main__":
    main()
