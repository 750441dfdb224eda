"""``POST /v1/encode``."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request, Response

from api.answers import job_answer
from api.body import whole_body
from api.counting import count_answer
from api.docs import problems
from api.jobs import cancel_job, is_final, wait_job
from api.presence import watched
from api.schemas import OnDisconnect
from api.services import Served, Services
from api.submission import Submitted, submit
from epd.contracts.answers import JobAnswer
from epd.contracts.job import JobView
from epd.telemetry.tracing import carrier_of

logger = logging.getLogger(__name__)

router = APIRouter(tags=["encode"])

_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/EncodeRequest"}}},
}
_PENDING: dict[str, Any] = {"model": JobAnswer, "description": "Not final yet; Location names the job"}


@router.post(
    "/v1/encode",
    response_model=JobAnswer,
    responses=problems(400, 403, 404, 413, 415, 422, 429, 503) | {202: _PENDING},
    openapi_extra={"requestBody": _BODY},
)
async def encode(request: Request, response: Response, services: Served) -> JobAnswer:
    """Encode items. 200 when every item is final within ``wait`` seconds (default 30), else 202.

    A job whose items failed is final too: look at the states. A fault of the request refuses all of it.
    A caller that leaves while it waits ends nothing, unless ``on_disconnect`` says ``cancel``.
    """
    limit = services.settings.max_body_bytes
    async with whole_body(request, limit=limit, budget=services.bodies) as body:
        submitted = await services.call(submit, services, body, carrier_of(request.headers))
    view, job_id = submitted.view, submitted.view.record.job_id
    response.headers["Location"] = f"/v1/jobs/{job_id}"
    if not is_final(view) and submitted.wait > 0:
        view = await _wait(request, services, submitted)
    response.status_code = 200 if is_final(view) else 202
    answer = job_answer(view)
    if is_final(view):
        count_answer(services.metrics, answer)
    return answer


async def _wait(request: Request, services: Services, submitted: Submitted) -> JobView:
    """The job after the wait; cancelled where its caller left and had asked for that."""
    job_id = submitted.view.record.job_id
    with services.metrics.waiting.track_inprogress():
        async with watched(request) as caller:
            view = await wait_job(services, job_id, submitted.wait, caller)
    if caller.gone and not is_final(view) and submitted.on_disconnect is OnDisconnect.CANCEL:
        logger.info("job %s: its caller left, so it is cancelled", job_id)
        services.metrics.disconnects.inc()
        return await cancel_job(services, job_id)
    return view
