"""A kept-alive HTTP/1.1 connection that sends prepared bytes: a client that costs next to nothing.

It understands only answers with Content-Length, which the servers under test send.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"


class Exchange(asyncio.Protocol):
    """One request at a time. ``ask`` returns the status and the body of its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail a pending request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Complete the request once its answer is whole."""
        self._received += data
        head = self._received.find(_END)
        if head < 0 or self._answer is None:
            return
        length = _LENGTH.search(self._received, 0, head + 2)
        end = head + len(_END) + (int(length[1]) if length else 0)
        if len(self._received) >= end and not self._answer.done():
            status = int(self._received[9:12])
            self._answer.set_result((status, bytes(self._received[head + len(_END) : end])))
            del self._received[:end]

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and wait for its answer. Raises ``ConnectionError`` if there is none."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("not connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Exchange:
    """A connection to a server of this machine."""
    _, exchange = await asyncio.get_running_loop().create_connection(Exchange, "127.0.0.1", port)
    return exchange


def request_bytes(body: str) -> bytes:
    """``POST /v1/encode`` with this body, as bytes on the wire."""
    data = body.encode()
    head = (
        "POST /v1/encode HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
