"""Waiting for a handoff: woken by its notice, whichever process it was put through."""

from __future__ import annotations

import time
from contextlib import suppress

from fastapi import Request
from pydantic import ValidationError

from api.completions import Subscription
from api.errors import in_seconds, invalid_fields
from api.presence import Presence, watched
from api.services import Services
from epd.contracts.errors import NotFound, StoreUnavailable
from epd.contracts.handoff import Handoff, HandoffRequest, handoff_topic

#: Bytes of a request body: 256 items with their metadata given along, and many runs of placeholders.
MAX_BODY = 1 << 20
#: Longer bodies are parsed in a thread: they would hold the event loop up.
_SHORT_BODY = 1 << 16
#: Who waits looks again after this many seconds without a notice: well inside what the store keeps a wish.
LOOK_SECONDS = 5.0


async def handoff_of(services: Services, body: bytearray) -> HandoffRequest:
    """The request of a body; raises ``InvalidRequest`` naming the fields at fault."""
    if len(body) <= _SHORT_BODY:
        return _parse(body)
    return await services.call(_parse, body)


def _parse(body: bytearray) -> HandoffRequest:
    try:
        return HandoffRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise invalid_fields(
            error.errors(include_url=False, include_context=False, include_input=False)
        ) from None


async def read_handoff(services: Services, request_id: str, watcher: str | None = None) -> Handoff | None:
    """A handoff if it is there; else the watcher is told when it comes. One round trip."""
    looks = services.store.handoff_looks
    if looks is None:
        return await services.call(services.store.handoffs.get, request_id, watcher)
    return await looks.get(request_id, watcher)


async def wait_handoff(services: Services, request_id: str, seconds: float, request: Request) -> Handoff:
    """A handoff as soon as it is there.

    The subscription is there before the first look, so none is missed. A store that goes away meanwhile
    prolongs the wait up to ``seconds``.

    Raises:
        NotFound: none came within ``seconds``, or its time is over.
        Overloaded: too many requests wait already.
    """
    with services.completions.subscribe(handoff_topic(request_id), final_only=True) as subscription:
        found = await read_handoff(services, request_id, services.completions.watcher)
        if found is None:
            with services.metrics.waiting.track_inprogress():
                async with watched(request) as caller:
                    found = await _wait(services, request_id, seconds, subscription, caller)
    if found is None:
        raise NotFound(f"no handoff of that request id came within {in_seconds(seconds)}")
    return found


async def _wait(
    services: Services, request_id: str, seconds: float, subscription: Subscription, caller: Presence
) -> Handoff | None:
    end = time.monotonic() + seconds
    caller.on_gone = subscription.wake
    found = None
    while found is None and not caller.gone and (left := end - time.monotonic()) > 0:
        await subscription.wait(min(left, LOOK_SECONDS))
        with suppress(StoreUnavailable):
            found = await read_handoff(services, request_id, services.completions.watcher)
    return found
