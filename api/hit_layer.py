"""The short way to an answer from the cache: ``POST /v1/encode`` before routing, dependencies and threads.

What it does not answer goes on to the route with its body, as if nothing had looked at it. So the route is
what an answer is, and this layer only how fast it comes.
"""

from __future__ import annotations

from types import SimpleNamespace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.body import whole_body
from api.counting import count_hits
from api.errors import broken_off, problem_response
from api.hits import HitPath
from api.schemas import parse_request
from api.services import Services
from epd.contracts.errors import EpdError
from epd.telemetry.tracing import carrier_of

PATH = "/v1/encode"
#: Longer bodies are read in a thread: decoding and hashing what they carry would hold the loop up.
MAX_BODY = 1 << 16

_ROUTE = SimpleNamespace(path=PATH)  # what requests are counted under


class HitLayer:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._most = min(MAX_BODY, services.settings.max_body_bytes)
        self._path = None if services.store.hits is None else HitPath(services, services.store.hits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if self._path is None or not _is_short_encode(scope, self._most):
            await self._app(scope, receive, send)
            return
        scope["route"] = _ROUTE
        answer = await self._answered(self._path, Request(scope, receive))
        if isinstance(answer, Response):
            await answer(scope, receive, send)
        else:
            await self._app(scope, _replayed(answer, receive), send)

    async def _answered(self, path: HitPath, request: Request) -> Response | bytes:
        """The response, or the body of a request that the route has to answer."""
        try:
            async with whole_body(request, limit=self._most, budget=self._services.bodies) as body:
                found = await path.answer(parse_request(body), carrier_of(request.headers))
        except EpdError as error:
            return problem_response(error)
        except ClientDisconnect:
            return broken_off()
        if found is None:
            return bytes(body)
        count_hits(self._services.metrics, found.items)
        location = {"Location": f"/v1/jobs/{found.job_id}"}
        return Response(found.json, headers=location, media_type="application/json")


def _is_short_encode(scope: Scope, most: int) -> bool:
    """Whether it is a request of the path whose body is known to have ``most`` bytes or less."""
    if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
        return False
    stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return stated.isdigit() and len(stated) < 9 and int(stated) <= most


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A way to receive a body that was received before, and then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
