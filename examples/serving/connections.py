"""Connections with bounds: their number, their headers, and how long each part of a request may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SILENT_SECONDS = 10
"""uvicorn's ``timeout_keep_alive``: for all of a request's headers, and for each next part of its body."""
BODY_SECONDS = 30.0
"""From the headers to the end of the body."""
ANSWER_SECONDS = 120.0
"""From the body to the end of the answer, which the client has to take."""
LINGER_SECONDS = 2.0
"""How long what a refused client goes on sending is thrown away, so that it can read why."""
LARGEST_HEAD = 64 << 10
"""Bytes of the path and all headers, about."""
FRAME = 9
"""Bytes of a chunked body's smallest chunk, of which one is body."""


class Punctual(HttpToolsProtocol):
    """uvicorn's protocol, which waits for ever for a request that has begun. Whoever is late is cut off.

    ``timeout_keep_alive`` bounds every silence here, not only the one after an answer.
    """

    _deadline: asyncio.TimerHandle | None = None
    _body_ends = 0.0
    _refused = False
    _other = 0
    """Bytes of the present request that are no body: headers, frames of chunks, trailers."""

    def _within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._within(self.timeout_keep_alive)
        # Above its limit uvicorn answers 503. Those who do not even ask are turned away at twice as many.
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # a connection that is closed before it was read would take the answer with it
        self._other += len(data)
        super().data_received(data)
        if self._other > LARGEST_HEAD and not self.transport.is_closing():
            self._refused = True
            if self._answered():
                self.transport.write(
                    b"HTTP/1.1 431 Headers too large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                )
                self._within(LINGER_SECONDS)
            else:
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._other = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._body_ends = self.loop.time() + BODY_SECONDS
        self._within(self.timeout_keep_alive)

    def on_body(self, body: bytes) -> None:
        self._other -= FRAME * len(body)
        super().on_body(body)
        self._within(min(self.timeout_keep_alive, self._body_ends - self.loop.time()))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._within(self.timeout_keep_alive if self._answered() else ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._within(self.timeout_keep_alive if self._answered() else ANSWER_SECONDS)

    def _answered(self) -> bool:
        """Whether no request waits for its answer."""
        latest: Any = self.cycle
        return latest is None or bool(latest.response_complete)
