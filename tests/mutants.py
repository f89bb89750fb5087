"""Mutated source code: `python tests/mutants.py optim --count 200 --out nightly-output/mutants`.

Each mutant is the package with one small edit: an operator, a comparison, a number, a condition or a statement. The
tests of that package should fail on it. Mutants that survive are printed with their place and their edit; the exit
status is 1 where fewer than nine of ten die. Places are chosen at random by a seed, so that a run can be repeated; it
goes on where another into the same folder stopped; `--again` also gives those another chance to die that were alive.

One process imports everything and collects the tests. A child of it runs them all and notes which functions each of
them calls. Each mutant is another child, in which the code of one function is exchanged: it runs the tests that call
the function, quick ones first, up to the first that fails. What they let live is given to those tests that start
processes, with a changed copy of the source; and an edit of what runs at the import alone goes there at once. Triton's
interpreter judges the kernels that it can run.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from edits import ROOT, SOURCE, Mutant, chosen, known

PACKAGES = ("optim", "posterior", "memory", "adaptation", "merging")
BESIDE = {"optim": ["tests/distributed"]}  # tests of a package that are elsewhere
INTERPRETED = ["tests/optim/interpreted.py", "tests/optim/interpreted_adam.py"]
Place = tuple[str, str, int]  # file, qualified name and first line of a function


def place(code: CodeType) -> Place:
    """Where the code of a function stands."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def outer_functions(code: CodeType) -> Iterator[CodeType]:
    """Functions of a module and of its classes, without those inside of functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            is_function = inner.co_flags & 1  # its locals are fast, which those of a class are not
            yield from [inner] if is_function else outer_functions(inner)


def exchanged(mutant: Mutant) -> dict[Place, CodeType]:
    """The code of functions that a mutant changes; none where the change is outside of them, or of what they close."""
    text, name = mutant.path.read_text(encoding="utf-8"), str(mutant.path)
    codes = (compile(source, name, "exec", dont_inherit=True) for source in (text, mutant.tree))
    changed = [(old, new) for old, new in zip(*map(outer_functions, codes), strict=True) if old != new]
    return {place(new): new for old, new in changed if old.co_freevars == new.co_freevars}


def living(folder: Path) -> dict[Place, list[FunctionType]]:
    """All functions of a package, as they are in memory once each of its modules is imported."""
    for path in sorted(folder.rglob("*.py")):
        importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    found: dict[Place, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(str(folder)):
            found.setdefault(place(thing.__code__), []).append(thing)
    return found


def processor_time() -> float:
    """Seconds that this process has computed, and those that it started and has seen end."""
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + started.ru_utime + started.ru_stime


class Calls:
    """A plugin of pytest: which functions each test calls, how long it takes, and whether it starts processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self._now: set[Place] = set()
        self._starts = False
        sys.addaudithook(self._heard)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now, self._starts = set(), False
        began = processor_time()
        sys.settrace(self._called)
        threading.settrace(self._called)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds = processor_time() - began
        self.tests[item.nodeid] = {"seconds": seconds, "calls": sorted(self._now), "starts": self._starts}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def _heard(self, event: str, _: object) -> None:
        self._starts = self._starts or event == "subprocess.Popen"

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(self.folder):
            self._now.add(place(frame.f_code))


class Package:
    """A plugin of pytest: once the tests of a package are collected, its mutants instead of them.

    Args:
        name: The package.
        mutants: Those to run.
        out: A folder for what is known: which test calls what, and which mutants have died.
        seconds: How much of tests a mutant gets, by the time they took unmutated; what is alive then, stays alive.
        interprets: Whether Triton's interpreter judges what is alive beside its kernels, in minutes each.
    """

    def __init__(self, name: str, mutants: list[Mutant], out: Path, seconds: float, interprets: bool = True) -> None:
        self.name, self.mutants, self.out, self.seconds, self.interprets = name, mutants, out, seconds, interprets
        self.results = out / f"{name}.tsv"
        self.tests: dict[str, dict[str, Any]] = {}

    def states(self) -> dict[str, str]:
        """Which mutants are dead and which alive, from the last line about each."""
        lines = self.results.read_text(encoding="utf-8").splitlines() if self.results.exists() else []
        return {key: state for key, _, state in (line.rpartition("\t") for line in lines)}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = self.out / f"{self.name}-calls.json"
        if not known.exists():
            calls = in_a_child(lambda: self._look(session), 7200.0)
            if not isinstance(calls, dict):
                pytest.exit(f"tests of {self.name}: expected all to pass on the package as it is, got {calls}", 2)
            known.write_text(json.dumps(calls), encoding="utf-8")
        self.tests = json.loads(known.read_text(encoding="utf-8"))
        if not any(file.startswith(str(SOURCE)) for test in self.tests.values() for file, _, _ in test["calls"]):
            pytest.exit(f"{known}: expected calls of functions in {SOURCE}, got those of another folder", 2)
        items = {item.nodeid: item for item in session.items if item.nodeid in self.tests}
        functions = living(SOURCE / self.name)
        for mutant in self.mutants:
            cause = self._cause_of_death(mutant, session, items, functions)
            with self.results.open("a", encoding="utf-8") as file:
                file.write(f"{mutant.key}\t{f'dead by {cause}' if cause else 'alive'}\n")
        return True

    def _look(self, session: pytest.Session) -> Any:
        plugin = Calls(SOURCE / self.name)
        session.config.pluginmanager.register(plugin)
        run(session, session.items)
        return plugin.failed or plugin.tests

    def _cause_of_death(
        self, mutant: Mutant, session: pytest.Session, items: dict[str, pytest.Item], functions: dict[Place, Any]
    ) -> str:
        """The test that fails on a mutant, or in what way it ended; nothing where it lives."""
        codes, file = exchanged(mutant), str(mutant.path)
        if is_interpreted(mutant):
            return self._interpreted(mutant)
        starting = self._starting()
        if codes and all(place in functions for place in codes):
            near = self._calling({(file, name) for file, name, _ in codes})
            alone = [test for test in (*near, *self._beside(near)) if test not in starting]
            cause = self._cause_in_a_child(codes, self._within(alone), session, items, functions)
            if cause:
                return cause
        elif not codes:
            near = self._calling({(f, name) for f, name, _ in functions if f == file})
            near = [*(test for test in self._only_reading() if test not in near), *near]
            starting = [*near, *(test for test in starting if test not in near)]
        left = ("src",) if self.interprets else ("src", "tests/optim/test_triton.py")  # examples import no copy
        tests = self._within([test for test in starting if not test.startswith(left)])
        if tests and self._fails(mutant, tests, self._limit(tests)):
            return "a copy of the source"
        launches = mutant.path.parent.name == "kernels" or "fused" in mutant.path.name
        return self._interpreted(mutant) if launches and self.interprets else ""

    def _interpreted(self, mutant: Mutant) -> str:
        return "the interpreter" if self._fails(mutant, INTERPRETED, 3600.0, TRITON_INTERPRET="1") else ""

    def _cause_in_a_child(
        self,
        codes: dict[Place, CodeType],
        tests: list[str],
        session: pytest.Session,
        items: dict[str, pytest.Item],
        functions: dict[Place, Any],
    ) -> str:
        def child() -> str:
            for place, code in codes.items():
                for function in functions[place]:
                    function.__code__ = code
            return run(session, [items[test] for test in tests])

        answer = in_a_child(child, self._limit(tests)) if tests else ""
        return "no answer" if answer is None else str(answer)

    def _calling(self, names: set[tuple[str, str]]) -> list[str]:
        """Tests that call one of some functions or what is defined inside, those of quick files first."""
        return self._quick_first(
            test
            for test, known in self.tests.items()
            if any((file, name.split(".<locals>")[0]) in names for file, name, _ in known["calls"])
        )

    def _only_reading(self) -> list[str]:
        """Tests that call nothing of the package: some read signatures, and with them defaults and constants."""
        return self._quick_first(test for test, known in self.tests.items() if not known["calls"])

    def _starting(self) -> list[str]:
        """Tests that start processes, or look at what those found that a fixture has started; likewise."""
        elsewhere = tuple(BESIDE.get(self.name, []))
        return self._quick_first(
            test for test, known in self.tests.items() if known["starts"] or test.startswith(elsewhere)
        )

    def _quick_first(self, tests: Iterable[str]) -> list[str]:
        cost: Counter[str] = Counter()
        for test in (chosen := list(tests)):
            cost[test.split("::")[0]] += self.tests[test]["seconds"]
        return sorted(chosen, key=lambda test: cost[test.split("::")[0]])

    def _beside(self, near: list[str]) -> list[str]:
        """Other tests of the same files: the fixture of a file calls functions in the first test of it alone."""
        files, chosen = {test.split("::")[0] for test in near}, set(near)
        return [test for test in self.tests if test.split("::")[0] in files and test not in chosen]

    def _within(self, tests: list[str]) -> list[str]:
        """As many of some tests as there are seconds for."""
        spent, chosen = 0.0, []
        for test in tests:
            spent += self.tests[test]["seconds"]
            if spent <= self.seconds:
                chosen.append(test)
        return chosen

    def _limit(self, tests: Iterable[str]) -> float:
        return 60.0 + 20.0 * sum(self.tests[test]["seconds"] for test in tests)

    def _fails(self, mutant: Mutant, tests: list[str], seconds: float, **settings: str) -> bool:
        """Whether tests fail twice on a changed copy: one that starts processes may fail once on a busy machine."""
        return not any(self._passes(mutant, tests, seconds, **settings) for _ in range(2))

    def _passes(self, mutant: Mutant, tests: list[str], seconds: float, **settings: str) -> bool:
        """Whether tests pass in an interpreter that imports a changed copy of the source."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            (source / mutant.path.relative_to(ROOT / "src")).write_text(ast.unparse(mutant.tree), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            path = os.pathsep.join([str(source), str(ROOT / "tests")])
            environment = {**os.environ, "PYTHONPATH": path, **settings}
            work = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            try:
                return work.wait(seconds) == 0
            except subprocess.TimeoutExpired:
                os.killpg(work.pid, signal.SIGKILL)
                return False


def is_interpreted(mutant: Mutant) -> bool:
    """Whether an edit is in a kernel, which Triton's interpreter alone can run here, in minutes."""
    return mutant.path.name.startswith("_triton")


def run(session: pytest.Session, items: list[pytest.Item]) -> str:
    """Run tests up to the first that fails; its name, or nothing."""
    for item, following in zip(items, [*items[1:], None]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return ""


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
        until, ended = time.monotonic() + seconds, False
        try:
            while not ended and time.monotonic() < until:
                time.sleep(0.02)
                ended = os.waitpid(child, os.WNOHANG)[0] != 0
        finally:
            if not ended:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return json.loads(answer.read_text(encoding="utf-8")) if ended and answer.exists() else None


def main() -> None:
    """Run the tests on mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+", choices=PACKAGES)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run those again that were alive")
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for a mutant")
    parser.add_argument("--kernels-later", action="store_true", help="without Triton's interpreter")
    parser.add_argument("--out", type=Path, required=True, help="folder for results, which a later run goes on from")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    poor, equivalent = False, known()
    for name in given.packages:
        every = chosen(name, given.count, given.seed)
        later = [mutant for mutant in every if given.kernels_later and is_interpreted(mutant)]
        counted = [mutant for mutant in every if mutant.name not in equivalent and mutant not in later]
        package = Package(name, counted, given.out, given.seconds, not given.kernels_later)
        before = package.states()
        package.mutants = [m for m in counted if m.key not in before or (given.again and before[m.key] == "alive")]
        if collect(package) == 2:
            sys.exit(2)
        after = package.states()
        alive = [mutant for mutant in counted if not after.get(mutant.key, "").startswith("dead")]
        print("", *(f"alive: {mutant.key}" for mutant in alive), sep="\n")
        died, same = len(counted) - len(alive), len(every) - len(counted) - len(later)
        left = f", {len(later)} are left for later" if later else ""
        print(f"{name}: {died} of {len(counted)} mutants died, {same} are equivalent{left}", flush=True)
        poor = poor or len(alive) > 0.1 * len(counted)
    sys.exit(int(poor))


def collect(package: Package) -> int:
    """Collect the tests of a package; what runs then is its mutants."""
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    where = [f"tests/{package.name}", f"src/posterity/{package.name}"]  # examples in docstrings are tests too
    where += BESIDE.get(package.name, [])
    scratch = f"--basetemp={package.out / 'scratch'}"  # of one child after the other, and of nobody else
    return int(pytest.main(["-q", "-p", "no:cacheprovider", scratch, *where], plugins=[package]))


if __name__ == "__main__":
    main()
