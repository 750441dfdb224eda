"""``/v1/handoff/{request_id}``: Prefill puts, Decode gets. The contract is docs/handoff.md.

A waiting request is woken by a notice, through whichever process the handoff was put.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import TypeAdapter, ValidationError

from api.errors import invalid_request, problems, seconds_text
from api.jobs.completions import ClientConnection, Subscription, watched
from api.requests import body_of, whole_body
from api.services import PlainRoute, Served, Services, services_of
from epd.contracts.errors import InvalidRequest, NotFound, StoreUnavailable
from epd.contracts.handoff import REQUEST_ID, Handoff, HandoffReceipt, HandoffRequest, handoff_topic

router = APIRouter(tags=["handoff"])

#: Bytes of a request body: 256 items with the metadata that came with them, and many runs of placeholders.
MAX_BODY = 1 << 20
#: Seconds after which a waiting request reads again without a notice. The store keeps a watcher for longer.
LOOK_SECONDS = 5.0
#: Longer bodies are parsed in a thread: they would block the event loop.
_SHORT_BODY = 1 << 16
_JSON = "application/json"

RequestId = Annotated[str, Path(pattern=REQUEST_ID, description="the engine's own id of the request")]
Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="seconds to wait for it")]


@dataclass(frozen=True, slots=True)
class GetParameters:
    """The parameters of ``get_handoff``."""

    request_id: RequestId
    wait: Wait = 0


_get_parameters = TypeAdapter(GetParameters)


@router.put(
    "/v1/handoff/{request_id}",
    response_model=HandoffReceipt,
    responses=problems(400, 404, 409, 413, 429, 503) | {201: {"model": HandoffReceipt}},
    openapi_extra=body_of("HandoffRequest"),
)
async def put_handoff(request: Request, services: Served, request_id: RequestId) -> Response:
    """Say where each embedding stands in a prompt; the metadata of the keys is added.

    201, or 200 where the same handoff was there: its lifetime starts again. Another one of that id is 409.
    """
    async with whole_body(request, limit=MAX_BODY, budget=services.bodies) as body:
        wanted = await _handoff_of(services, body)
    stored = await services.call(services.store.handoffs.put, request_id, wanted)
    receipt = HandoffReceipt(
        request_id=request_id,
        nbytes=len(stored.handoff.to_json()),
        ttl=services.settings.handoff_ttl,
    )
    return Response(receipt.to_json(), status_code=201 if stored.created else 200, media_type=_JSON)


async def get_handoff(request: Request) -> Response:
    """All that Decode needs of a prompt's items, without a byte of media, pixels or embeddings.

    Waits up to ``wait`` seconds for it to be put. Reading removes nothing.
    """
    services = await services_of(request)
    parameters = _parameters(request)
    if parameters.wait > services.settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {seconds_text(services.settings.max_wait)}")
    found = await services.store.async_handoffs.get(parameters.request_id)
    if found is None and parameters.wait > 0:
        found = await _wait_handoff(services, parameters.request_id, parameters.wait, request)
    if found is None:
        raise NotFound("no handoff of that request id, or it has expired")
    return Response(found.to_json(), media_type=_JSON)


router.add_api_route(
    "/v1/handoff/{request_id}",
    get_handoff,
    methods=["GET"],
    response_model=Handoff,
    responses=problems(400, 404, 429, 503),
    dependencies=[Depends(GetParameters)],
    route_class_override=PlainRoute,
)


@router.delete("/v1/handoff/{request_id}", status_code=204, responses=problems(400, 503))
async def delete_handoff(services: Served, request_id: RequestId) -> None:
    """Remove a handoff before it expires. It need not be there."""
    await services.call(services.store.handoffs.remove, request_id)


def _parameters(request: Request) -> GetParameters:
    """The parameters of a request; raises ``InvalidRequest``."""
    given = {"request_id": request.path_params["request_id"]}
    if "wait" in request.query_params:
        given["wait"] = request.query_params["wait"]
    try:
        return _get_parameters.validate_python(given)
    except ValidationError as error:
        raise invalid_request(error) from None


async def _handoff_of(services: Services, body: bytearray) -> HandoffRequest:
    """Parse a request body; raises ``InvalidRequest`` naming the fields at fault."""
    if len(body) <= _SHORT_BODY:
        return _parse(body)
    return await services.call(_parse, body)


def _parse(body: bytearray) -> HandoffRequest:
    try:
        return HandoffRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise invalid_request(error) from None


async def _wait_handoff(services: Services, request_id: str, seconds: float, request: Request) -> Handoff:
    """A handoff as soon as it is there.

    The subscription precedes the first read, so no notice is missed. The wait goes on while the store is
    unavailable, up to ``seconds``.

    Raises:
        NotFound: none came within ``seconds``, or it has expired.
        Overloaded: too many requests wait already.
    """
    with services.completions.subscribe(handoff_topic(request_id), final_only=True) as subscription:
        found = await services.store.async_handoffs.get(request_id, services.completions.watcher)
        if found is None:
            with services.metrics.waiting.track_inprogress():
                async with watched(request) as caller:
                    found = await _wait(services, request_id, seconds, subscription, caller)
    if found is None:
        raise NotFound(f"no handoff of that request id came within {seconds_text(seconds)}")
    return found


async def _wait(
    services: Services, request_id: str, seconds: float, subscription: Subscription, caller: ClientConnection
) -> Handoff | None:
    end = time.monotonic() + seconds
    caller.on_disconnect = subscription.wake
    found = None
    while found is None and not caller.disconnected and (left := end - time.monotonic()) > 0:
        await subscription.wait(min(left, LOOK_SECONDS))
        with suppress(StoreUnavailable):
            found = await services.store.async_handoffs.get(request_id, services.completions.watcher)
    return found
