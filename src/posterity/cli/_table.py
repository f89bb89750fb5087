"""`posterity table`: every algorithm compared with an independent implementation, run live."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from posterity.table import Result, Row

_WIDE = 110  # columns that the five of the table need


def table(
    name: Annotated[str | None, typer.Argument(metavar="[ROW]", help="Explain and run one row only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation page; run nothing.")] = False,
) -> None:
    """Run Table 1: every algorithm beside an independent implementation.

    Exit code 1 if a row exceeds its tolerance, 2 if the package of a reference is not installed.
    """
    if as_json and as_markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    import torch

    from posterity.table import ROWS, markdown, row

    rows = ROWS if name is None else (row(name),)
    if as_markdown:
        typer.echo(markdown(rows), nl=False)
        return
    _refuse_missing(rows)
    torch.set_num_threads(1)  # the problems are tiny, and threads would only wait for each other
    results = _run(rows)
    if as_json:
        typer.echo(json.dumps([_fields(result) for result in results], indent=2, ensure_ascii=False))
    elif name is None:
        _print_table(results)
    else:
        _print_row(results[0])
    raise typer.Exit(0 if all(result.holds for result in results) else 1)


def _refuse_missing(rows: Sequence[Row]) -> None:
    missing = sorted({row.package for row in rows if row.missing})
    if missing:
        typer.echo(f"posterity: not installed: {', '.join(missing)}; pip install 'posterity[table]'", err=True)
        raise typer.Exit(2)


def _run(rows: Sequence[Row]) -> list[Result]:
    from posterity.progress import track

    return [row.run() for row in track(rows, "Table 1", total=len(rows))]


def _fields(result: Result) -> dict[str, object]:
    row = result.row
    return {
        "row": row.name,
        "posterior": row.posterior,
        "approximations": row.approximations,
        "reference": row.reference,
        "deviation": result.deviation if math.isfinite(result.deviation) else None,  # JSON has no NaN
        "tolerance": row.tolerance,
        "unit": row.unit,
        "holds": result.holds,
    }


def _numbers(result: Result) -> str:
    deviation = f"{result.deviation:.1e}" if result.row.unit != "standard errors" else f"{result.deviation:.1f} s.e."
    return f"{deviation} ≤ {result.row.tolerance:g}" if result.holds else f"{deviation} > {result.row.tolerance:g}"


def _print_table(results: Sequence[Result]) -> None:
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160)  # a pipe has no width to obey
    console.print(_grid(results) if console.width >= _WIDE else _list(results))
    off = [result.row.name for result in results if not result.holds]
    console.print(f"off: {', '.join(off)}" if off else f"All {len(results)} rows within their tolerance.")


def _grid(results: Sequence[Result]) -> Table:
    from rich.table import Table

    shown = Table()
    for heading in ("row", "posterior", "approximations", "reference", "deviation"):
        shown.add_column(heading, no_wrap=heading in ("row", "deviation"), overflow="fold")
    for result in results:
        row = result.row
        shown.add_row(row.name, row.posterior, row.approximations, row.reference, _coloured(result))
    return shown


def _list(results: Sequence[Result]) -> str:
    """The same without columns, for terminals where columns would be cut."""
    blocks = []
    for result in results:
        row = result.row
        about = f"  {row.posterior}: {row.approximations}\n  beside {row.reference}"
        blocks.append(f"[bold]{row.name}[/]  {_coloured(result)}\n{about}")
    return "\n".join(blocks)


def _coloured(result: Result) -> str:
    return f"[{'green' if result.holds else 'bold red'}]{_numbers(result)}[/]"


def _print_row(result: Result) -> None:
    row = result.row
    typer.echo(row.derivation)
    typer.echo(f"\nApproximations: {row.approximations}\nReference: {row.reference}")
    typer.echo(f"Measured deviation ({row.unit}): {_numbers(result)}")
