"""The short way to a handoff that is there: before routing and dependencies, which cost three times as much.

What is not there yet, or is asked for in any other way, goes on to the route as if nothing had looked. So the
route is what an answer is, and this layer only how fast it comes.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import problem_response
from api.services import Services
from epd.contracts.errors import EpdError
from epd.contracts.handoff import REQUEST_ID
from epd.store.redis.handoffs import HandoffLooks

_PREFIX = "/v1/handoff/"
_ROUTE = SimpleNamespace(path=f"{_PREFIX}{{request_id}}")  # what requests are counted under
_ID = re.compile(REQUEST_ID)
#: How the clients say for how long they wait; anything else is left to the route's own validation.
_WAIT = re.compile(rb"|wait=(\d{1,6})")


class HandoffLayer:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        looks = self._services.store.handoff_looks
        request_id = None if looks is None else self._asked_for(scope)
        answer = None
        if looks is not None and request_id is not None:
            answer = await _answer(looks, request_id)
        if answer is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = _ROUTE
        await answer(scope, receive, send)

    def _asked_for(self, scope: Scope) -> str | None:
        """The id of a plain request for a handoff."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_PREFIX):
            return None
        request_id = scope["path"][len(_PREFIX) :]
        wait = _WAIT.fullmatch(scope["query_string"])
        if wait is None or int(wait[1] or 0) > self._services.settings.max_wait:
            return None
        return request_id if _ID.fullmatch(request_id) else None


async def _answer(looks: HandoffLooks, request_id: str) -> Response | None:
    """The handoff, or None when it is not there."""
    try:
        found = await looks.get(request_id)
    except EpdError as error:
        return problem_response(error)
    return None if found is None else Response(found.to_json(), media_type="application/json")
