"""``/v1/handoff/{request_id}``: Prefill puts, Decode gets. The contract is docs/handoff.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.body import whole_body
from api.docs import body_of, problems
from api.errors import in_seconds
from api.handoffs import MAX_BODY, handoff_of, read_handoff, wait_handoff
from api.services import Served
from epd.contracts.errors import InvalidRequest, NotFound
from epd.contracts.handoff import REQUEST_ID, Handoff, HandoffReceipt

router = APIRouter(tags=["handoff"])

RequestId = Annotated[str, Path(pattern=REQUEST_ID, description="the engine's own id of the request")]
Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="seconds to wait for it")]

_JSON = "application/json"


@router.put(
    "/v1/handoff/{request_id}",
    response_model=HandoffReceipt,
    responses=problems(400, 404, 409, 413, 429, 503) | {201: {"model": HandoffReceipt}},
    openapi_extra=body_of("HandoffRequest"),
)
async def put_handoff(request: Request, services: Served, request_id: RequestId) -> Response:
    """Say where each embedding stands in a prompt; the metadata of the keys is joined in.

    201, or 200 where the same was there: then it lives anew. Another one of that id is 409.
    """
    async with whole_body(request, limit=MAX_BODY, budget=services.bodies) as body:
        wanted = await handoff_of(services, body)
    stored = await services.call(services.store.handoffs.put, request_id, wanted)
    receipt = HandoffReceipt(
        request_id=request_id,
        nbytes=len(stored.handoff.to_json()),
        ttl=services.settings.handoff_ttl,
    )
    return Response(receipt.to_json(), status_code=201 if stored.created else 200, media_type=_JSON)


@router.get("/v1/handoff/{request_id}", response_model=Handoff, responses=problems(400, 404, 429, 503))
async def get_handoff(request: Request, services: Served, request_id: RequestId, wait: Wait = 0) -> Response:
    """All that Decode needs of a prompt's items, without any media, pixel or embedding byte.

    Waits up to ``wait`` seconds for it to be put. Reading takes nothing away.
    """
    if wait > services.settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {in_seconds(services.settings.max_wait)}")
    if wait > 0:
        found = await wait_handoff(services, request_id, wait, request)
    elif (there := await read_handoff(services, request_id)) is not None:
        found = there
    else:
        raise NotFound("no handoff of that request id, or its time is over")
    return Response(found.to_json(), media_type=_JSON)


@router.delete("/v1/handoff/{request_id}", status_code=204, responses=problems(400, 503))
async def delete_handoff(services: Served, request_id: RequestId) -> None:
    """Forget a handoff before its time; it need not be there."""
    await services.call(services.store.handoffs.remove, request_id)
