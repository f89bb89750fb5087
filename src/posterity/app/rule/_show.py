"""`show_rule`: the Bayesian learning rule in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from posterity.app._serve import Served, run_server
from posterity.errors import MissingExtra
from posterity.files import write_bytes


@overload
def show_rule(
    html: None = None, *, port: int = ..., host: str = ..., browser: bool = ..., block: bool = ...
) -> Served: ...
@overload
def show_rule(
    html: str | Path, *, port: int = ..., host: str = ..., browser: bool = ..., block: bool = ...
) -> Path: ...


def show_rule(
    html: str | Path | None = None,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    browser: bool = True,
    block: bool = True,
) -> Served | Path:
    """Show the Bayesian learning rule in the browser: q moves over a loss, step by step.

        λ ← λ − ρ ∇_μ ( E_q[ℓ] − τ H(q) )

    A panel has a loss, a family, an estimator of the gradient, ρ, momentum and a temperature. Every row of Table 1
    is a preset, and up to three panels run side by side. All numbers are computed by `posterity.rule`.

    Args:
        html: Write the page into this file instead, with the films of all presets. Such a page needs no server, and
            cannot compute what is dragged or changed.
        port: Port of the page; 0 takes a free one.
        host: By default this machine alone; see `serve`.
        browser: Open the page in the browser.
        block: Stay until Ctrl-C; otherwise serve in a thread and return.

    Returns:
        The server, with `url` and `stop()`; the path, where a file was written.
    """
    if html is not None:
        from posterity.app.rule.page import document

        write_bytes(Path(html), document().encode())
        return Path(html)
    try:
        import uvicorn  # noqa: F401

        from posterity.app.rule.server import application
    except ImportError as reason:
        raise MissingExtra("show_rule: needs starlette and uvicorn; pip install 'posterity[app]'") from reason
    return run_server(application, "the rule", port=port, host=host, browser=browser, block=block)
