"""`serve`: a memory map in the browser."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.app.source import Source
from posterity.errors import InvalidInput, MissingExtra, expected, require
from posterity.memory import MemoryMap

if TYPE_CHECKING:
    from uvicorn import Server

    from posterity.runs import RunFolder

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")


class Served:
    """A running server: its address, and how to end it."""

    def __init__(self, url: str, server: Server, thread: threading.Thread) -> None:
        self.url, self._server, self._thread = url, server, thread

    def __repr__(self) -> str:
        return f"Served({self.url})"

    def stop(self) -> None:
        """End the server and wait until it is gone."""
        self._server.should_exit = True
        self._thread.join()


def serve(
    what: MemoryMap | Source | RunFolder | str | Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    browser: bool = True,
    block: bool = True,
    **options: Any,
) -> Served:
    """Show a memory map in the browser.

    Args:
        what: A `MemoryMap`, a `Source`, a run, or its folder.
        port: Port of the page; 0 takes a free one.
        host: By default this machine alone. Any other address lets the network in, with the token; "0.0.0.0" listens at
            all of them and accepts the machine's name and address as host.
        browser: Open the page in the browser.
        block: Stay until Ctrl-C; otherwise serve in a thread and return.
        options: What `from_map` takes (or `from_run`, for a run): test, examples, history, ...

    Returns:
        The server, with `url` and `stop()`.
    """
    try:
        import uvicorn  # noqa: F401

        from posterity.app.server import application
    except ImportError as reason:
        raise MissingExtra("serve: needs starlette and uvicorn; pip install 'posterity[app]'") from reason
    load = loader(what, options)
    make = partial(application, load)
    return run_server(make, "the memory map", port=port, host=host, browser=browser, block=block)


def run_server(make: Callable[..., Any], what: str, *, port: int, host: str, browser: bool, block: bool) -> Served:
    """Listen, serve in a thread, and print the address.

    Args:
        make: The application, given the accepted hosts, its token and its port.
        what: The page's name for the terminal.
        port: Port of the page; 0 takes a free one.
        host: The address to listen at.
        browser: Open the page in the browser.
        block: Stay until Ctrl-C.
    """
    import uvicorn

    from posterity.app.connections import Patient

    require(0 <= port < 65536, "port", "a number from 0 to 65535", port)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    app = make(hosts=_hosts(host, port), token=token, port=port)
    limits: dict[str, Any] = {"http": Patient, "limit_concurrency": 256, "h11_max_incomplete_event_size": 16384}
    settings = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off", **limits)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    served = Served(
        f"http://{_shown(_own_address() if host in EVERYWHERE else host)}:{port}/?token={token}", server, thread
    )
    if host not in LOOPBACK:
        print("posterity: this is plain HTTP; others on the network can read the token and the data", file=sys.stderr)
    if browser:
        webbrowser.open(served.url)
    if block:
        _stay(served, thread, what)
    return served


def loader(what: Any, options: dict[str, Any]) -> Callable[[], Source]:
    """What makes the source: at once for maps, when the page asks for run folders."""
    if isinstance(what, Source):
        require(not options, "options", "none with a Source, which has them all", sorted(options))
        return lambda: what
    if isinstance(what, MemoryMap):
        from posterity.app.from_map import from_map

        source = from_map(what, **options)
        return lambda: source
    from posterity.runs import RunFolder

    if isinstance(what, (RunFolder, str, Path)):
        from posterity.app.from_run import from_run

        return partial(from_run, what, **options)
    raise expected("what", "a MemoryMap, a Source, a run or its folder", type(what).__name__)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise InvalidInput(f"port: expected a free one at {host}, got {port} ({error.strerror})") from None
    return listening


def _hosts(host: str, port: int) -> set[str]:
    """The exact Host headers that are served."""
    names = {host} if host in LOOPBACK else {host, socket.gethostname()}
    if host in LOOPBACK or host in EVERYWHERE:
        names |= {*LOOPBACK}
    if host in EVERYWHERE:
        names.add(_own_address())
    return {f"{_shown(name)}:{port}".lower() for name in names}


def _own_address() -> str:
    """What this machine is called in its network; nothing is sent to find out."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return LOOPBACK[0]


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stay(served: Served, thread: threading.Thread, what: str) -> None:
    print(f"posterity: {what} is at {served.url}\nposterity: Ctrl-C ends it", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while thread.is_alive():
            thread.join(0.2)
    served.stop()
