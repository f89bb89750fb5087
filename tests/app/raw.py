"""Requests exactly as they are written, which no client tidies up."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit


class Raw:
    """Requests exactly as they are written, which no client tidies up."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self.port, self.token = parts.port, parts.query.removeprefix("token=")
        self.host, self.cookie = f"127.0.0.1:{self.port}", f"posterity-{self.port}={self.token}"

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        cookie: bool = True,
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {"Host": self.host, "Connection": "close", "Content-Length": str(len(body))}
        if cookie:
            sent["Cookie"] = self.cookie
        sent |= headers or {}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in sent.items() if v) + "\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(head.encode("latin-1") + body)
            answer = b"HTTP/1.1 0 cut off\r\n\r\n"  # a server that has heard enough may hang up without a word
            with contextlib.suppress(ConnectionResetError):
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
        start, _, content = answer.partition(b"\r\n\r\n")
        lines = start.decode("latin-1").split("\r\n")
        return int(lines[0].split()[1]), dict(_header(line) for line in lines[1:]), content

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        given = {"Origin": f"http://{self.host}", "Content-Type": "application/json"}
        return self(path, "POST", body, given | {k.replace("_", "-"): v for k, v in headers.items()})


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()
