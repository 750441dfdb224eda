"""``/healthz`` and ``/readyz``, and the way from ``/`` to the documentation."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from api.docs import problems
from api.errors import problem_response
from api.readiness import reasons_not_ready
from api.services import Served
from epd.contracts.errors import EncoderNotReady, EpdError

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """This process serves requests."""

    status: str = "ok"


class Readiness(BaseModel):
    """The stack can encode."""

    ready: bool = True


@router.get("/", include_in_schema=False)
async def front() -> RedirectResponse:
    """A browser that opens the server's bare address lands on the documentation."""
    return RedirectResponse("docs")


@router.get("/healthz")
async def healthz() -> Health:
    """Alive. It asks nobody and never waits."""
    return Health()


@router.get("/readyz", response_model=Readiness, responses=problems(503))
async def readyz(services: Served) -> Readiness | Response:
    """Ready when every kind of worker has a live heartbeat and the default model's encoders are warm.

    503 is a problem with ``reasons``, a list of sentences.
    """
    try:
        beats = await services.call(services.store.heartbeats.alive)
    except EpdError as error:
        return problem_response(error, reasons=[str(error)])
    reasons = reasons_not_ready(beats, services.config)
    if not reasons:
        return Readiness()
    return problem_response(EncoderNotReady("; ".join(reasons)), reasons=reasons)
