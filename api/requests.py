"""What every request passes: an id, counts, a last resort for errors, and bounds on its body.

A body is capped in bytes, bounded in time, and within the memory budget of the process.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import SCHEMAS, problem_response
from epd.contracts.errors import Internal, InvalidRequest, MediaTooLarge, Overloaded
from epd.telemetry.metrics import ApiMetrics

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


logger = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestLayer:
    """ASGI middleware. A caller's own request id is kept when it is short and plain."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._metrics)
        try:
            await self._app(scope, receive, exchange.send)
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            if exchange.status:
                raise  # the response has begun, so the server has to abort the connection
            await problem_response(Internal("internal error"))(scope, receive, exchange.send)
        finally:
            exchange.log()


class _Exchange:
    def __init__(self, scope: Scope, send: Send, metrics: ApiMetrics) -> None:
        given = Headers(scope=scope).get(REQUEST_ID, "")
        self.request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        self.status = 0
        self._scope = scope
        self._send = send
        self._metrics = metrics
        self._began = time.perf_counter()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID] = self.request_id
        await self._send(message)

    def log(self) -> None:
        path, seconds = str(self._scope["path"]), time.perf_counter() - self._began
        _count(self._metrics, self._scope, self.status, seconds)
        logger.log(
            logging.DEBUG if path in _QUIET else logging.INFO,
            "%s %r %d %.1f ms id=%s",
            self._scope["method"],
            path[:200],
            self.status,
            1000 * seconds,
            self.request_id,
        )


def _count(metrics: ApiMetrics, scope: Scope, status: int, seconds: float) -> None:
    """Count a request under its route's pattern, so that ids in paths make no new series."""
    route = getattr(scope.get("route"), "path", "unmatched")
    method = scope["method"] if route != "unmatched" else "any"
    metrics.requests.labels(method, route, str(status)).inc()
    metrics.request_seconds.labels(method, route).observe(seconds)
