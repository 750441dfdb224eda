"""``/v1/jobs/{id}``: read a job, wait for it, cancel it, follow its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.sse import EventSourceResponse

from api.errors import problems, seconds_text
from api.jobs.actions import cancel_job, read_job, wait_job, watch_job
from api.jobs.answers import job_answer
from api.jobs.completions import Subscription, watched
from api.jobs.events import job_events
from api.services import Served
from epd.contracts.errors import InvalidRequest
from epd.contracts.responses import EventAnswer, JobAnswer

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="32 hex digits")]


@router.get("/v1/jobs/{job_id}", responses=problems(400, 404, 503))
async def get_job(
    request: Request,
    services: Served,
    job_id: JobId,
    wait: Annotated[float, Query(ge=0, allow_inf_nan=False, description="seconds to wait for its end")] = 0,
) -> JobAnswer:
    """A job as it stands, or when it is final within ``wait`` seconds."""
    if wait > services.settings.max_wait:
        raise InvalidRequest(f"wait: the limit is {seconds_text(services.settings.max_wait)}")
    if wait == 0:
        return job_answer(await read_job(services, job_id))
    await watch_job(services, job_id)
    async with watched(request) as caller:
        return job_answer(await wait_job(services, job_id, wait, caller))


@router.delete("/v1/jobs/{job_id}", responses=problems(400, 404, 503))
async def delete_job(services: Served, job_id: JobId) -> JobAnswer:
    """Cancel what is not final yet. Embeddings that are done stay; cancelling again changes nothing."""
    return job_answer(await cancel_job(services, job_id))


async def _subscribed(services: Served, job_id: JobId) -> AsyncIterator[Subscription]:
    """A subscription for the length of the stream. It is made before, so that a missing job is a 404."""
    await watch_job(services, job_id)
    with services.completions.subscribe(job_id) as subscription:
        await read_job(services, job_id)
        yield subscription


@router.get("/v1/jobs/{job_id}/events", response_class=EventSourceResponse, responses=problems(400, 404, 503))
async def get_events(
    services: Served, job_id: JobId, subscription: Annotated[Subscription, Depends(_subscribed)]
) -> AsyncIterator[EventAnswer]:
    """Server-sent events: each item as it stands, then one for each change, until the job is final."""
    async for event in job_events(services, job_id, subscription):
        yield event
