"""The web application of the rule: a page, its catalogue once, and films on request."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posterity.app.endpoints import file_of, starlette
from posterity.app.rule.catalogue import asked, catalogue
from posterity.app.rule.page import static
from posterity.app.security import Wall

_computing = threading.Lock()


def application(*, hosts: Iterable[str], token: str, port: int) -> Wall:
    """The whole application behind its wall; arguments as those of the wall."""
    files = static()
    page = functools.partial(file_of, files)
    gets: dict[str, Callable[[Request], Response]] = {"/": page, "/static/{name}": page}
    gets["/api/catalogue"] = lambda _: JSONResponse(catalogue())
    return Wall(starlette(gets, {"/api/film": lambda body: JSONResponse(_film(body))}), hosts, token, port)


def _film(body: Any) -> dict[str, Any]:
    """A film; those of presets are computed once."""
    if isinstance(body, dict) and isinstance(body.get("preset"), str) and not body.get("changes"):
        return _of_preset(body["preset"])
    return _alone(body)


@functools.lru_cache(maxsize=128)
def _of_preset(name: str) -> dict[str, Any]:
    return _alone({"preset": name})


def _alone(body: Any) -> dict[str, Any]:
    """One film at a time, on one thread, which is fastest for problems this small."""
    with _computing:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return asked(body)
        finally:
            torch.set_num_threads(threads)
