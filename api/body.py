"""Reading request bodies: capped in bytes, bounded in time, and within the process's memory budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.services import ByteBudget
from epd.contracts.errors import InvalidRequest, MediaTooLarge

#: A body that brings no byte for this long is given up, in seconds.
IDLE_SECONDS = 30.0
#: A body that is held in memory has to be whole within this time, an upload within the other, in seconds.
BODY_SECONDS = 300.0
UPLOAD_SECONDS = 3600.0


@asynccontextmanager
async def whole_body(request: Request, *, limit: int, budget: ByteBudget) -> AsyncIterator[bytearray]:
    """The body in memory for the length of the block.

    Raises:
        MediaTooLarge: it is longer than ``limit`` bytes.
        Overloaded: the process holds too many bodies.
        InvalidRequest: its length header is wrong, or it stopped coming.
        ClientDisconnect: the client left before it was whole.
    """
    stated = stated_length(request, limit)
    with budget.hold(limit if stated is None else stated):
        body = bytearray()
        async for chunk in body_chunks(request, limit=limit, seconds=BODY_SECONDS):
            body += chunk
        yield body


async def body_chunks(request: Request, *, limit: int, seconds: float) -> AsyncIterator[bytes]:
    """The body piece by piece; raises as ``whole_body`` does, as soon as a limit is passed.

    Read message by message: the request's own stream takes three waits for a body of one piece.
    """
    stated_length(request, limit)
    end = time.monotonic() + seconds
    total, more = 0, True
    while more:
        left = max(end - time.monotonic(), 0)
        if left == 0:  # which a timeout would not see while the next piece is there already
            raise InvalidRequest("the body came too slowly")
        try:
            async with asyncio.timeout(min(IDLE_SECONDS, left)):  # wait_for would make a task of each message
                message = await request.receive()
        except TimeoutError:
            raise InvalidRequest("the body came too slowly") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        total += len(chunk)
        if total > limit:
            raise MediaTooLarge(f"the body is over {limit} bytes")
        yield chunk


def stated_length(request: Request, limit: int) -> int | None:
    """Content-Length in bytes, or None; raises ``MediaTooLarge`` before any byte is read."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest("Content-Length is not a number")
    if len(text) > 18 or int(text) > limit:
        raise MediaTooLarge(f"the body is over {limit} bytes")
    return int(text)
