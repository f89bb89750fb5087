"""What the pages' servers share: files, questions answered in threads, and errors as JSON."""

from __future__ import annotations

import json
import logging
import mimetypes
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from posterity.app.security import TooLarge, TooSlow
from posterity.errors import InvalidInput, PosterityError

BINARY = "application/octet-stream"
_log = logging.getLogger("posterity.app")


def starlette(
    gets: Mapping[str, Callable[[Request], Response]], posts: Mapping[str, Callable[[Any], Response]]
) -> Starlette:
    """An application of questions: those of GET take the request, those of POST the JSON of its body."""
    routes = [Route(path, _asked(answer), methods=["GET"]) for path, answer in gets.items()]
    routes += [Route(path, _told(answer), methods=["POST"]) for path, answer in posts.items()]
    handlers: Any = {
        PosterityError: _explain,
        HTTPException: lambda _, e: JSONResponse({"error": e.detail}, status_code=e.status_code),
        TooSlow: lambda _, e: JSONResponse({"error": "no request arrived in time"}, 408, {"connection": "close"}),
        TooLarge: lambda _, e: JSONResponse({"error": "the request is too large"}, status_code=413),
        OSError: lambda _, e: JSONResponse({"error": f"a file cannot be read: {e.strerror}"}, status_code=404),
        Exception: _fail,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def file_of(files: Mapping[str, bytes], request: Request) -> Response:
    """One of a page's own files; the page itself where none is named."""
    name = request.path_params.get("name", "index.html")
    if name not in files:
        raise HTTPException(404, "there is no such file")
    kind = mimetypes.types_map.get("." + name.rsplit(".", 1)[-1], BINARY)
    return Response(files[name], media_type="text/javascript" if name.endswith(".js") else kind)


def _asked(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return endpoint


def _told(answer: Callable[[Any], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise InvalidInput("body: expected JSON, got something else") from None
        return await run_in_threadpool(answer, body)

    return endpoint


def _explain(_: Request, error: Exception) -> Response:
    missing = isinstance(error, OSError)  # a file that is damaged or gone
    return JSONResponse({"error": str(error)}, status_code=404 if missing else 422)


def _fail(_: Request, error: Exception) -> Response:
    _log.error("a question failed", exc_info=error)
    return JSONResponse({"error": "something went wrong; the terminal shows the error"}, status_code=500)
