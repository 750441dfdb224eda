"""``GET /v1/status``: workers, queues and the cache, for ``epd status`` and for people."""

from __future__ import annotations

import time

from fastapi import APIRouter

from api.docs import problems
from api.memory_figures import graph_bytes, worker_figure
from api.services import Served, Services
from epd.contracts.answers import QueueAnswer, StatusAnswer, WorkerAnswer
from epd.store.values import Heartbeat
from epd.telemetry.counters import Count

router = APIRouter(tags=["status"])


@router.get("/v1/status", responses=problems(503))
async def get_status(services: Served) -> StatusAnswer:
    """Live workers with their counters, messages by queue, and the sizes of cache and blobs in bytes."""
    return await services.call(_status, services)


def _status(services: Services) -> StatusAnswer:
    store, settings = services.store, services.settings
    now = time.time()
    cache = store.embeddings.stats()
    unacked = services.depth.unacked()
    return StatusAnswer(
        workers=tuple(_worker(beat, now) for beat in sorted(store.heartbeats.alive(), key=_by_name)),
        queues=tuple(
            QueueAnswer(name=name, waiting=waiting, unacked=unacked.get(name, 0))
            for name, waiting in services.depth.messages().items()
        ),
        cache_entries=cache.entries,
        cache_bytes=cache.nbytes,
        cache_limit=cache.limit,
        l2=cache.l2,
        cache_totals=cache.totals,
        blob_bytes=store.blobs.used_bytes(),
        blob_limit=settings.blob_bytes,
    )


def _by_name(beat: Heartbeat) -> str:
    return beat.name


def _worker(beat: Heartbeat, now: float) -> WorkerAnswer:
    return WorkerAnswer(
        name=beat.name,
        kind=beat.kind,
        host=beat.host,
        pid=beat.pid,
        ready=beat.ready,
        age=max(0.0, now - beat.at),
        encoders=beat.encoders,
        memory_bytes=worker_figure(beat, Count.WORKER_MEMORY),
        graph_bytes=graph_bytes(beat),
        staging_bytes=worker_figure(beat, Count.STAGING_MEMORY),
        counters=beat.counters,
    )
