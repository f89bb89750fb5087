"""Access control: checks in front of the application, for a server on your own machine.

Web pages from elsewhere can reach local ports (DNS rebinding, forged forms), so that being local proves nothing. The
wall lets a request pass only under a Host name that is exactly one of ours, from no foreign Origin, with the token
that was printed on the terminal; and it limits what a body may be and what the page may load.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ONWARDS = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">The page</a>'
BODY_LIMIT = 8 * 2**20  # bytes
BODY_SECONDS = 30.0
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Wall:
    """An ASGI application around another that refuses requests without permission.

    Args:
        app: What is behind it.
        hosts: Exact values of the Host header that are served, with the port.
        token: Secret that the first address carries; afterwards a cookie does.
        port: Part of the cookie's name, because cookies are shared between ports.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str, port: int) -> None:
        self.app, self.hosts, self.token = app, frozenset(hosts), token
        self.cookie = f"posterity-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: the connection is closed

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, sealed)
            return
        await self.app(scope, _limited(receive), sealed)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return _refuse(421, "this name is not served here")
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return _refuse(405, f"{method} is not served")
        origins = headers.getlist("origin")
        foreign = any(origin not in {f"http://{host}" for host in self.hosts} for origin in origins)
        if foreign or (method == "POST" and len(origins) != 1):
            return _refuse(403, "requests from other sites are refused")
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        offered = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and method == "GET" and len(offered) == 1 and self._is_token(offered[0]):
            return self._welcome(elsewhere)
        if elsewhere:
            return _refuse(403, "requests from other sites are refused")
        if not self._is_token(_cookie(headers, self.cookie)):
            return _unknown(scope["path"])
        return _refuse_body(method, headers)

    def _welcome(self, elsewhere: bool) -> Response:
        """The token leaves the address bar and becomes a cookie that scripts and other sites cannot use.

        Browsers withhold the cookie from a redirect that began elsewhere, at a link in a notebook for instance; a page
        that goes on by itself is one of ours.
        """
        response: Response = HTMLResponse(ONWARDS) if elsewhere else RedirectResponse("/", status_code=303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def _is_token(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode(), self.token.encode())


def _refuse_body(method: str, headers: Headers) -> Response | None:
    length = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,19}", length):
        return _refuse(400, "Content-Length is no number")
    if int(length) > BODY_LIMIT:
        return _refuse(413, f"at most {BODY_LIMIT} bytes are read")
    if method == "POST" and headers.get("content-type") != "application/json":
        return _refuse(415, "bodies are JSON")
    return None


class TooLarge(Exception):
    """A body that goes on beyond the limit."""


class TooSlow(Exception):
    """A body that does not come."""


def _limited(receive: Receive) -> Receive:
    """The same stream of a body, which ends with an error beyond the limits of length and time.

    A chunked body has no length, and one that was announced need not come.
    """
    seen, more = 0, True
    until = time.monotonic() + BODY_SECONDS

    async def counted() -> Message:
        nonlocal seen, more
        try:
            message = await asyncio.wait_for(receive(), until - time.monotonic() if more else None)
        except TimeoutError:
            raise TooSlow from None
        more = bool(message.get("more_body", False))
        seen += len(message.get("body", b""))
        if seen > BODY_LIMIT:
            raise TooLarge
        return message

    return counted


def _cookie(headers: Headers, name: str) -> str:
    """Our cookie, among those that other servers on this machine have set: cookies are shared between ports."""
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def _unknown(path: str) -> Response:
    why = "open the address that the terminal printed; it carries the token"
    return PlainTextResponse(f"posterity: {why}", 401) if path == "/" else _refuse(401, why)  # people see the first


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
