"""The outermost layer: each response gets a request id, a log line and a count, and no bug leaks its text."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from epd.contracts.errors import Internal
from epd.telemetry.metrics import ApiMetrics

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
