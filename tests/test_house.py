"""The house rules, read from the source: one order of imports, small documented files, nothing that executes data."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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


def faults(check: Callable[[Path], Iterable[str]]) -> list[str]:
    """What a check says of every file, with the name of the file."""
    return [f"{ids(path)}, {fault}" for path in FILES for fault in check(path)]


def test_every_room_is_on_the_plan() -> None:
    rooms = {room(path) for path in FILES} - {"__init__"}
    assert rooms <= set(ORDER)


def imports_from_below(path: Path) -> Iterator[str]:
    if room(path) == "__init__":
        return  # the front door names every room, lazily
    here = ORDER.index(room(path))
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "posterity" or parts[1:] == ["__version__"]:
            continue
        if len(parts) == 1:
            yield f"line {line}: the front door opens to every room; name the one that is needed"
        elif parts[1] not in ORDER:
            yield f"line {line}: {name} is in no room of the house"
        elif ORDER.index(parts[1]) > here:
            yield f"line {line}: {name} stands below {room(path)}"


def test_imports_only_from_above() -> None:
    assert faults(imports_from_below) == []


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


def imports_of_others(path: Path) -> Iterator[str]:
    for node in parsed(path).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        found = {name.split(".")[0] for name in names}
        if not found <= CORE | EXTRAS.get(room(path), set()):
            yield f"line {node.lineno}: {found}"


def test_a_plain_install_can_import_every_file() -> None:
    """What is imported with a module is a dependency, or in the extra of its room; the rest is imported when used."""
    assert faults(imports_of_others) == []


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


def too_long_or_silent(path: Path) -> Iterator[str]:
    length = len(path.read_text().splitlines())
    if length > 400:
        yield f"{length} lines"
    if not ast.get_docstring(parsed(path)):
        yield "every module says in a sentence what it is for"


def test_files_are_small_and_documented() -> None:
    assert faults(too_long_or_silent) == []


def executions(path: Path) -> Iterator[str]:
    for line, name in imports(path):
        if name.split(".")[0] in EXECUTES:
            yield f"line {line}: {name}"
    nodes = list(ast.walk(parsed(path)))
    safe = [node.func for node in nodes if is_safe_load(node)] if ids(path) == SAFE_LOADER else []
    if len(safe) > 1:
        yield "state dicts are loaded in one place"
    for node in nodes:
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called in ("eval", "exec", "__import__"):
            yield f"line {node.lineno}: {called}"
        if isinstance(node, ast.Attribute) and node not in safe and tuple(ast.unparse(node).split(".")) in LOADERS:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"line {node.value.lineno}: allow_pickle"


def test_nothing_executes_data() -> None:
    assert faults(executions) == []


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
