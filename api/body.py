"""Request bodies: capped in bytes, bounded in time, and within the process's memory budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.errors import SCHEMAS
from epd.contracts.errors import InvalidRequest, MediaTooLarge, Overloaded

#: Seconds without a byte after which a body is given up.
IDLE_SECONDS = 30.0
#: Seconds within which a body that is held in memory has to be complete, and an upload.
BODY_SECONDS = 300.0
UPLOAD_SECONDS = 3600.0
#: Seconds after which a refused caller may retry.
_RETRY_AFTER = 1.0


class ByteBudget:
    """Counts the bytes of bodies in memory, and refuses more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Hold bytes for the length of the block; raises ``Overloaded`` when they do not fit."""
        with self._lock:
            if self._held + nbytes > self.limit:
                raise Overloaded("too many request bodies at once", retry_after=_RETRY_AFTER)
            self._held += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._held -= nbytes


@asynccontextmanager
async def whole_body(request: Request, *, limit: int, budget: ByteBudget) -> AsyncIterator[bytearray]:
    """The body, held in memory for the length of the block.

    Raises:
        MediaTooLarge: it is longer than ``limit`` bytes.
        Overloaded: the process holds too many bodies.
        InvalidRequest: its length header is wrong, or it came too slowly.
        ClientDisconnect: the client left before it was complete.
    """
    stated = stated_length(request, limit)
    with budget.hold(limit if stated is None else stated):
        body = bytearray()
        async for chunk in body_chunks(request, limit=limit, seconds=BODY_SECONDS):
            body += chunk
        yield body


async def body_chunks(request: Request, *, limit: int, seconds: float) -> AsyncIterator[bytes]:
    """The body piece by piece; raises as ``whole_body`` does, as soon as a limit is passed.

    It reads message by message, since ``Request.stream`` awaits three times for a body of one piece.
    """
    stated_length(request, limit)
    end = time.monotonic() + seconds
    total, more = 0, True
    while more:
        left = max(end - time.monotonic(), 0)
        if left == 0:  # a timeout alone does not fire while the next piece is there already
            raise InvalidRequest("the body came too slowly")
        try:
            async with asyncio.timeout(min(IDLE_SECONDS, left)):  # wait_for would make each message a task
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


def body_of(model: str) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body by hand; ``create_app`` adds the model."""
    schema = {"$ref": SCHEMAS.format(model=model)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
