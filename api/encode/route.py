"""``POST /v1/encode``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from api.body import whole_body
from api.encode.admission import named_model
from api.encode.cached import cached_json, cached_parts, count_cached
from api.encode.plan import Plan
from api.encode.request import OnDisconnect, parse_request
from api.encode.submission import Submitted, submit
from api.jobs.answers import count_answer, job_answer
from api.jobs.completions import watched
from api.jobs.jobs import cancel_job, is_final, wait_job
from api.openapi import problems
from api.services import PlainRoute, Services, services_of
from epd.contracts.job import JobView
from epd.contracts.responses import JobAnswer
from epd.lookup import by_track, encoders_of
from epd.telemetry.tracing import carrier_of, span

logger = logging.getLogger(__name__)

router = APIRouter(tags=["encode"], route_class=PlainRoute)

#: Longer bodies, and requests of more items, are planned in a thread: hashing would block the loop.
SHORT_BODY = 1 << 16
FEW_ITEMS = 64

_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/EncodeRequest"}}},
}
_PENDING: dict[str, Any] = {"model": JobAnswer, "description": "Not final yet; Location names the job"}
_JSON = "application/json"


@router.post(
    "/v1/encode",
    response_model=JobAnswer,
    responses=problems(400, 403, 404, 413, 415, 422, 429, 503) | {202: _PENDING},
    openapi_extra={"requestBody": _BODY},
)
async def encode(request: Request) -> Response:
    """Encode items. 200 when every item is final within ``wait`` seconds (default 30), else 202.

    A job whose items failed is final too: look at the states. A fault of the request refuses all of it.
    A caller that leaves while it waits ends nothing, unless ``on_disconnect`` says ``cancel``.
    """
    services = await services_of(request)
    started = await _started(services, request)
    if isinstance(started, Response):
        return started
    view = started.view
    if not is_final(view) and started.wait > 0:
        view = await _wait(request, services, started)
    answer = job_answer(view)
    if is_final(view):
        count_answer(services.metrics, answer)
    status = 200 if is_final(view) else 202
    return _response(view.record.job_id, answer.model_dump_json().encode(), status)


async def _started(services: Services, request: Request) -> Response | Submitted:
    """The answer of a request whose items are all cached; else the job that was started for it."""
    limit = services.settings.max_body_bytes
    async with whole_body(request, limit=limit, budget=services.bodies) as body:
        plan = await _planned(services, body)
        return await _answered(services, plan, carrier_of(request.headers))


async def _answered(services: Services, plan: Plan, trace: Mapping[str, str]) -> Response | Submitted:
    looked = await services.store.async_cache.lookup(list(plan.source_keys.values()), plan.keys)
    found = plan.found(looked.memos, {key: part.record for key, part in looked.parts.items()})
    parts = cached_parts(plan, found, looked)
    if parts is None:
        return await services.call(submit, services, plan, looked, found, trace)
    with span("epd.submit", trace, items=len(plan.items), cached=len(plan.items)):
        # The job comes first, since its id may be asked for.
        await services.store.async_cache.create(plan.record, parts)
    count_cached(services.metrics, plan)
    services.metrics.saved_bytes.inc(sum(each.saved_bytes for each in found.values()))
    return _response(plan.record.job_id, cached_json(plan, parts), 200)


async def _planned(services: Services, body: bytearray) -> Plan:
    """The request of a body, checked; see ``Planner.plan`` for what is raised."""
    is_long = len(body) > SHORT_BODY
    request = await services.call(parse_request, body) if is_long else parse_request(body)
    name, model = named_model(request, config=services.config, settings=services.settings)
    encoders = encoders_of(model)
    cards = by_track(encoders, await services.store.async_cache.cards(list(encoders.values())))
    plan = services.planner.plan
    if is_long or len(request.items) > FEW_ITEMS:
        return await services.call(plan, request, name=name, model=model, cards=cards)
    return plan(request, name=name, model=model, cards=cards)


def _response(job_id: str, json: bytes, status: int) -> Response:
    return Response(json, status, {"Location": f"/v1/jobs/{job_id}"}, _JSON)


async def _wait(request: Request, services: Services, started: Submitted) -> JobView:
    """The job after the wait; cancelled where its caller left and had asked for that."""
    job_id = started.view.record.job_id
    with services.metrics.waiting.track_inprogress():
        async with watched(request) as caller:
            view = await wait_job(services, job_id, started.wait, caller)
    if caller.disconnected and not is_final(view) and started.on_disconnect is OnDisconnect.CANCEL:
        logger.info("job %s: its caller left, so it is cancelled", job_id)
        services.metrics.disconnects.inc()
        return await cancel_job(services, job_id)
    return view
