"""`posterity rule`: the Bayesian learning rule in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import say


def rule(
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one file with the presets instead; it needs no server.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="The address to listen at; this machine alone by default.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Show the rule in the browser: choose a loss, a family and an estimator, or any row of Table 1.

    Up to three algorithms run side by side. The server computes what you drag or change.
    """
    from posterity.app import show_rule

    if html is not None:
        say(f"rule: {show_rule(html)}")
        return
    show_rule(port=port, host=host, browser=browser)
