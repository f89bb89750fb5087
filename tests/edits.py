"""Small edits of source code, chosen at random by a seed, for `mutants.py`."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "posterity"
SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.FloorDiv: ast.Mult, ast.MatMult: ast.Add,
}  # fmt: skip
# Their arguments are words for people; a mutant in one is no fault.
SPEECH = {"expected", "require", "warn", "InvalidInput", "RefusedFile", "Undefined", "MissingExtra", "track", "say"}


class Mutant(NamedTuple):
    """An edit of a file: where it is, what its line says, what the edit is, and the tree of the file with it."""

    path: Path
    line: int
    column: int  # in its line without the blanks before it
    text: str
    edit: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """What it is called, wherever its line has moved to."""
        return f"{self.path.relative_to(SOURCE)}: {self.edit} at {self.column} in {self.text!r}"

    @property
    def key(self) -> str:
        """Its name among all of this state of the source."""
        return f"line {self.line} of {self.path.relative_to(SOURCE)}: {self.edit} at {self.column}"


def mutant_of(path: Path, number: int) -> Mutant:
    """One mutant of a file, by the number of its place."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    node, what = list(_places(tree))[number]
    before, text = ast.unparse(node), source.splitlines()[node.lineno - 1]
    column = len(text.encode()[: node.col_offset].decode()) - (len(text) - len(text.lstrip()))
    _edit(node, what)
    edit = f"{_brief(before)} -> {_brief(ast.unparse(node))}"
    return Mutant(path, node.lineno, column, text.strip(), edit, ast.fix_missing_locations(tree))


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


def places_of(package: str) -> list[tuple[Path, int]]:
    """Every place of a package that can be edited: a file, and a number for `mutant_of`."""
    files = sorted((SOURCE / package).rglob("*.py"))
    return [(path, k) for path in files for k in range(len(list(_places(ast.parse(path.read_text("utf-8"))))))]


def chosen(package: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a package, each place as likely as any other."""
    every = places_of(package)
    return [mutant_of(*place) for place in random.Random(f"{seed}{package}").sample(every, min(count, len(every)))]


def known() -> dict[str, str]:
    """Mutants that change nothing that a test could hold, and why: a line of `tests/equivalent.txt` each."""
    lines = (ROOT / "tests" / "equivalent.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit("  ## ", 1) for line in lines if "  ## " in line)
