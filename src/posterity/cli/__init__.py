"""The command line, one file for each command; what is heavy is imported when a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from posterity import __version__
from posterity.cli._merge import merge
from posterity.cli._table import table
from posterity.errors import PosterityError

app = typer.Typer(help="Machines that keep learning.", no_args_is_help=True, add_completion=False)
app.command("merge")(merge)
app.command("table")(table)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, help="Print the version.")] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Run the command line; errors of the package become one line on standard error and exit code 2."""
    try:
        app()
    except PosterityError as error:
        typer.echo(f"posterity: {error}", err=True)
        sys.exit(2)
