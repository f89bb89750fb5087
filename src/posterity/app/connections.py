"""Idle connections: closed after a while, so that they cannot keep others out."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 10.0  # seconds until the headers of a request must have come
UNREAD = 30_000  # milliseconds until an answer that nobody takes ends the connection
IDLE = 128  # connections without a request at a time; beyond that the oldest goes


class Patient(H11Protocol):
    """uvicorn's protocol with a deadline for the headers of every request, however slowly they trickle in."""

    _deadline: asyncio.TimerHandle | None = None
    _since: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, and close the oldest connection where too many wait."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        self._wait()
        idle = [one for one in self.connections if isinstance(one, Patient) and not one._busy]
        if len(idle) > IDLE:
            oldest = min(idle, key=lambda one: one._since)
            oldest.transport.abort()
            self.connections.discard(oldest)  # at once: many may come before the loop tells it that it has ended

    def handle_events(self) -> None:
        """A request whose headers are complete is given its time."""
        super().handle_events()
        if self._busy:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """After an answer, wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self._busy:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(HEADERS, self._end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if not self._busy:
            self.transport.abort()
