"""The command line, one file for each command; what is heavy is imported when a command runs."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
import warnings
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from posterity import __version__
from posterity.cli._adapt import adapt
from posterity.cli._compare import compare
from posterity.cli._curvature import curvature
from posterity.cli._demo import demo
from posterity.cli._doctor import doctor
from posterity.cli._fit import fit
from posterity.cli._laplace import laplace
from posterity.cli._map import memory_map
from posterity.cli._merge import merge
from posterity.cli._next import next_rows
from posterity.cli._predict import predict
from posterity.cli._report import report
from posterity.cli._rule import rule
from posterity.cli._table import table
from posterity.cli._what_if import what_if
from posterity.errors import PosterityError

HELP = """Machines that keep learning: train a model with a posterior, then predict, clean labels, adapt and merge.

Exit codes: 0 done; 1 a check failed (doctor found a problem, a row of the table exceeds its tolerance); 2 wrong input,
or a file that is damaged or foreign; 3 an error of the system (disk full, no permission); 4 an error of posterity
itself; 130 stopped by Ctrl-C.
"""


_UNTIL_LOOK = 50_000  # objects


class Stopped(Exception):
    """Ctrl-C in a command."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:  # of which typer would make an exit without a word
            raise Stopped from why


def unwrapped(text: str | None) -> str:
    """A docstring without the line breaks of its paragraphs, which would be kept in the help of a command."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text or "").split("\n\n"))


app = typer.Typer(
    cls=_Commands, help=unwrapped(HELP), no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "laplace": laplace,
    "predict": predict,
    "map": memory_map,
    "what-if": what_if,
    "adapt": adapt,
    "next": next_rows,
    "compare": compare,
    "doctor": doctor,
    "report": report,
    "merge": merge,
    "curvature": curvature,
    "table": table,
    "rule": rule,
    "demo": demo,
}
for _name, _command in COMMANDS.items():
    app.command(_name, help=unwrapped(_command.__doc__))(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from, in full.")] = False,
) -> None:
    """Options before a command."""


def main() -> None:
    """Run the command line; an error becomes one line on standard error, and an exit code."""
    # Modules are made of objects that stay: to look for cycles among them takes a tenth of the time of their import.
    gc.set_threshold(_UNTIL_LOOK)
    atexit.register(keep_garbage)
    debug = "--debug" in sys.argv  # wherever it stands: people put it last, when something has gone wrong
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    if not debug:
        warnings.showwarning = _note
    try:
        app()
    except PosterityError as error:
        _stop(error, 2, debug)
    except OSError as error:
        _stop(error, 3, debug)
    except Stopped as error:
        _stop(error, 130, debug, "stopped")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        _stop(error, 4, debug, f"an error of posterity itself ({said}); add --debug to see where, and please report it")


def keep_garbage() -> None:
    """Skip Python's last search for garbage, which takes half a second; Triton would report what it leaves as leaks."""
    if "triton" not in sys.modules:
        gc.freeze()


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """A warning as a note, without the place in the source that Python would add."""
    typer.echo(f"note: {' '.join(str(message).split())}", err=True)


def _stop(error: BaseException, code: int, debug: bool, words: str | None = None) -> None:
    if debug:
        traceback.print_exception(error)
    line = " ".join((str(error) if words is None else words).split())
    typer.echo(f"posterity: {line}", err=True)
    sys.exit(code)
