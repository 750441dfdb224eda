"""``POST /v1/encode``: parse, plan, look up; then answer from the cache, or start a job and wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request, Response

from api.encode.plan import CachedItem, Plan
from api.encode.request import OnDisconnect, named_model, parse_request
from api.encode.submission import Submitted, submit
from api.errors import problems
from api.jobs.actions import cancel_job, is_final, wait_job, wait_subscribed
from api.jobs.answers import count_answer, job_answer
from api.jobs.completions import watched
from api.requests import body_of, whole_body
from api.services import PlainRoute, Services, services_of
from epd.contracts.job import JobView, PartId
from epd.contracts.media import Modality
from epd.contracts.responses import JobAnswer
from epd.lookup import by_track, encoders_of
from epd.store.cache.async_cache import CachedPart
from epd.telemetry.tracing import carrier_of, span

logger = logging.getLogger(__name__)

router = APIRouter(tags=["encode"], route_class=PlainRoute)

#: Longer bodies, and requests of more items, are planned in a thread: hashing would block the loop.
SHORT_BODY = 1 << 16
FEW_ITEMS = 64

_PENDING: dict[str, Any] = {"model": JobAnswer, "description": "Not final yet; Location names the job"}


@router.post(
    "/v1/encode",
    response_model=JobAnswer,
    responses=problems(400, 403, 404, 413, 415, 422, 429, 503) | {202: _PENDING},
    openapi_extra=body_of("EncodeRequest"),
)
async def encode(request: Request) -> Response:
    """Encode items. 200 when every item is final within ``wait`` seconds (default 30), else 202.

    A job whose items failed is final too: look at the states. A fault of the request refuses all of it.
    A caller that leaves while it waits ends nothing, unless ``on_disconnect`` says ``cancel``.
    """
    services = await services_of(request)
    trace = carrier_of(request.headers)
    with ExitStack() as waiting:
        async with whole_body(
            request, limit=services.settings.max_body_bytes, budget=services.bodies
        ) as body:
            plan = await _plan(services, body)
            looked = await services.store.async_cache.lookup(list(plan.source_keys.values()), plan.keys)
            cached = plan.cached(looked)
            if cached is not None:
                return await _answer_cached(services, plan, cached, trace)
            submitted = await submit(services, plan, looked, trace, waiting)
        view = submitted.view
        if not is_final(view) and submitted.wait > 0:
            view = await _wait(request, services, submitted)
        return _answer(services, view)


async def _plan(services: Services, body: bytearray) -> Plan:
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


async def _answer_cached(
    services: Services, plan: Plan, items: list[CachedItem], trace: Mapping[str, str]
) -> Response:
    """The answer of a job that is done at once. The job is written first, since its id may be asked for."""
    with span("epd.submit", trace, items=len(items), cached=len(items)):
        await services.store.async_cache.create(plan.record, _parts(items))
    services.cached.count(items)
    return _response(plan.record.job_id, services.cached.json(plan.record, items), 200)


def _parts(items: list[CachedItem]) -> list[tuple[PartId, CachedPart]]:
    parts = [(PartId(item.index, item.modality), main) for item, main, _ in items]
    parts += [(PartId(item.index, Modality.AUDIO), audio) for item, _, audio in items if audio is not None]
    return parts


async def _wait(request: Request, services: Services, submitted: Submitted) -> JobView:
    """The job after the wait; cancelled if its caller left and had asked for that."""
    job_id = submitted.view.record.job_id
    with services.metrics.waiting.track_inprogress():
        async with watched(request) as caller:
            if submitted.subscription is None:
                view = await wait_job(services, job_id, submitted.wait, caller)
            else:
                end = time.monotonic() + submitted.wait
                view = await wait_subscribed(services, submitted.view, submitted.subscription, end, caller)
    if caller.disconnected and not is_final(view) and submitted.on_disconnect is OnDisconnect.CANCEL:
        logger.info("job %s: its caller left, so it is cancelled", job_id)
        services.metrics.disconnects.inc()
        return await cancel_job(services, job_id)
    return view


def _answer(services: Services, view: JobView) -> Response:
    answer, final = job_answer(view), is_final(view)
    if final:
        count_answer(services.metrics, answer)
    return _response(view.record.job_id, answer.model_dump_json().encode(), 200 if final else 202)


def _response(job_id: str, json: bytes, status: int) -> Response:
    return Response(json, status, {"Location": f"/v1/jobs/{job_id}"}, "application/json")
