"""The house rules, read from the source: one order of imports, small documented files, nothing that executes data."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "posterity"
FILES = sorted(SRC.rglob("*.py"))

FLOORS = (
    "errors progress native startup distributed processes cells doubles trees linalg noise inputs texts batches files "
    "checkpoints likelihoods metrics",
    "families gradients rule algorithms curvature",
    "posterior",
    "optim learning adapters graph",
    "prediction memory adaptation merging exploration",
    "models table features runs plots app integrations cli __main__",
)
ORDER = " ".join(FLOORS).split()
EXECUTES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
SAFE_LOADER = "checkpoints.py"  # the one place that may call torch.load, with weights_only=True
LOADERS = {("torch", "load"), ("torch", "jit"), ("yaml", "load"), ("yaml", "unsafe_load"), ("pd", "read_pickle")}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    """The floor of the house a file stands on: `posterior` for posterior/full.py, `files` for files.py."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and absolute name of everything a file imports, at any depth of the code."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ("posterity", *path.relative_to(SRC).parent.parts)
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def ids(path: Path) -> str:
    return str(path.relative_to(SRC))


every_file = pytest.mark.parametrize("path", FILES, ids=ids)


def test_every_room_is_on_the_plan() -> None:
    rooms = {room(path) for path in FILES} - {"__init__"}
    assert rooms <= set(ORDER)


@every_file
def test_imports_only_from_above(path: Path) -> None:
    if room(path) == "__init__":
        pytest.skip("the front door names every room, lazily")
    here = ORDER.index(room(path))
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "posterity" or parts[1:] == ["__version__"]:
            continue
        assert len(parts) > 1, f"line {line}: the front door opens to every room; name the one that is needed"
        assert parts[1] in ORDER, f"line {line}: {name} is in no room of the house"
        assert ORDER.index(parts[1]) <= here, f"line {line}: {name} stands below {room(path)}"


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_rooms_keep_their_private_names() -> None:
    """A name with an underscore is used by its own room; the few crossings are written down here."""
    crossings = {
        f"{ids(path)} {name}"
        for path in FILES
        for _, name in imports(path)
        if name.startswith("posterity.") and name.split(".")[1] != room(path) and any(map(is_private, name.split(".")))
    }
    assert len(crossings) <= 5, sorted(crossings)


CORE = {"torch", "numpy", "pandas", "safetensors", "typer", "rich", "yaml", "posterity"} | set(sys.stdlib_module_names)
EXTRAS = {"models": {"sklearn", "scipy"}, "app": {"starlette", "uvicorn"}, "optim": {"triton"}}


@every_file
def test_a_plain_install_can_import_it(path: Path) -> None:
    """What is imported with a module is a dependency, or in the extra of its room; the rest is imported when used."""
    for node in parsed(path).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        found = {name.split(".")[0] for name in names}
        assert found <= CORE | EXTRAS.get(room(path), set()), f"line {node.lineno}: {found}"


LIKELIHOODS = (
    "Likelihood GaussianLikelihood BernoulliLikelihood CategoricalLikelihood PoissonLikelihood StudentTLikelihood"
)


def type_tests(kinds: str, home: str) -> list[str]:
    """Every `isinstance` outside a room that asks for one of its kinds."""
    found = []
    for path in FILES:
        if room(path) == home:
            continue
        known = {name.split(".")[-1] for _, name in imports(path) if name.startswith(f"posterity.{home}.")}
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                if asked & known & set(kinds.split()):
                    found.append(f"{ids(path)}:{node.lineno} {ast.unparse(node)}")
    return found


def test_likelihoods_are_asked_questions_not_types() -> None:
    """What depends on the likelihood stands in the likelihood, so that a new one is one file."""
    found = type_tests(LIKELIHOODS, "likelihoods")
    assert len(found) <= 10, found


STRUCTURES = "Structure Gaussian Diagonal Dropout Ensemble Full Kronecker LastLayer LowRank Mixture Rotated Signs"


def test_structures_are_asked_questions_not_types() -> None:
    found = type_tests(STRUCTURES, "posterior")
    assert len(found) <= 25, found


def test_a_class_name_means_one_thing() -> None:
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(ids(path))
    shared = {name: files for name, files in where.items() if len(files) > 1}
    assert not shared, shared


VERBS = {"learning", "prediction", "memory", "adaptation", "exploration", "optim", "curvature", "posterior"}
LIBRARY = {"cli/_demo/study.py"}  # the demonstration calls the library, as a script of a user would


def test_commands_parse_and_print() -> None:
    """A verb on a run lives in `runs`; commands import models and questions for their types alone."""
    for path in FILES:
        if room(path) == "cli" and ids(path) not in LIBRARY:
            typed = {n for node in ast.walk(parsed(path)) if is_type_checking(node) for n in ast.walk(node)}
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ImportFrom) and node not in typed:
                    assert (node.module or "").removeprefix("posterity.").split(".")[0] not in VERBS, ids(path)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@every_file
def test_small_and_documented(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(parsed(path)), "every module says in a sentence what it is for"


@every_file
def test_nothing_executes_data(path: Path) -> None:
    for line, name in imports(path):
        assert name.split(".")[0] not in EXECUTES, f"line {line}: {name}"
    nodes = list(ast.walk(parsed(path)))
    safe = [node.func for node in nodes if is_safe_load(node)] if ids(path) == SAFE_LOADER else []
    assert len(safe) <= 1, "state dicts are loaded in one place"
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "__import__"), f"line {node.lineno}: {node.func.id}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in safe:
            assert (node.value.id, node.attr) not in LOADERS, f"line {node.lineno}: {node.value.id}.{node.attr}"
        if isinstance(node, ast.keyword):
            assert node.arg != "allow_pickle", f"line {node.value.lineno}: allow_pickle"


def is_safe_load(call: ast.AST) -> bool:
    """Whether a node is the call torch.load(..., weights_only=True), spelt out."""
    return (
        isinstance(call, ast.Call)
        and ast.unparse(call.func) == "torch.load"
        and any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
    )


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running some code."""
    report = "\nimport sys; print('\\nloaded', *{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split()[1:])


def test_the_fast_tests_are_there() -> None:
    """`make check` reads them from a list: every line is a test, and every floor with tests has one."""
    root = SRC.parent.parent
    fast = (root / "tests" / "fast.txt").read_text().split()
    assert [line for line in fast if not (root / line).exists()] == []
    tested = {path.parts[-2] for path in (root / "tests").glob("*/test_*.py")}
    rooms = {line.split("/")[1] for line in fast}
    assert {name for name in " ".join(FLOORS[:5]).split() if name in tested} <= rooms


def test_importing_the_package_does_not_import_torch() -> None:
    assert modules_after("import posterity; dir(posterity)").isdisjoint({"torch", "numpy", "pandas"})
