"""``GET /metrics`` in Prometheus' text format."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.services import Served

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def get_metrics(services: Served) -> Response:
    """This process's own counts, and those of the fleet as its heartbeats tell them."""
    text = await services.call(generate_latest, services.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
