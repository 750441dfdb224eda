"""What this server and its fleet are doing: status, models, health, readiness and metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from api.errors import problem_response, problems
from api.services import Served, Services
from epd.config import Config
from epd.contracts.errors import EncoderNotReady, EpdError
from epd.contracts.media import Modality
from epd.contracts.responses import (
    EncoderAnswer,
    ModelAnswer,
    ModelsAnswer,
    QueueAnswer,
    StatusAnswer,
    WorkerAnswer,
)
from epd.store.values import Heartbeat
from epd.telemetry.counters import Count, counter_key, split_counter_key

router = APIRouter()

#: The kinds of worker that a stack needs.
KINDS = ("fetch", "decode", "encode")


def encoder_counter(beats: Sequence[Heartbeat], count: Count, encoder: str) -> int | None:
    """A counter of an encoder, the largest where workers differ; None when no worker reports it."""
    key = counter_key(count, encoder)
    return max((int(beat.counters[key]) for beat in beats if key in beat.counters), default=None)


def worker_counter(beat: Heartbeat, count: Count) -> int | None:
    """A counter of a GPU worker; None for workers that do not report it."""
    value = beat.counters.get(counter_key(count))
    return None if value is None else int(value)


def graph_bytes(beat: Heartbeat) -> int | None:
    """Bytes of all captured forwards of a worker; None where every forward runs eagerly."""
    own = [
        value for key, value in beat.counters.items() if split_counter_key(key)[0] == Count.GRAPH_MEMORY.value
    ]
    return int(sum(own)) if own else None


@router.get("/v1/status", tags=["status"], responses=problems(503))
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
        memory_bytes=worker_counter(beat, Count.WORKER_MEMORY),
        graph_bytes=graph_bytes(beat),
        staging_bytes=worker_counter(beat, Count.STAGING_MEMORY),
        counters=beat.counters,
    )


def ready_encoders(beats: Sequence[Heartbeat]) -> set[str]:
    """The encoders that a live and warm GPU worker serves."""
    return {name for beat in beats if beat.kind == "encode" and beat.ready for name in beat.encoders}


def reasons_not_ready(beats: Sequence[Heartbeat], config: Config) -> list[str]:
    """What is missing, as sentences; empty when the stack can serve the default model."""
    alive = {beat.kind for beat in beats if beat.ready}
    reasons = [f"no {kind} worker is alive and ready" for kind in KINDS if kind not in alive]
    name, model = config.model(None)
    needed = {encoder for modality in Modality if (encoder := model.encoder_for(modality)) is not None}
    for encoder in sorted(needed - ready_encoders(beats)):
        reasons.append(f"encoder {encoder} of model {name} is not warm")
    return reasons


@router.get("/v1/models", tags=["models"], responses=problems(503))
async def get_models(services: Served) -> ModelsAnswer:
    """The models and encoders of the config; ``ready``: a live GPU worker serves the encoder."""
    return await services.call(_models, services)


def _models(services: Services) -> ModelsAnswer:
    config = services.config
    names = list(config.encoders)
    cards = services.store.cards.get(names)
    beats = services.store.heartbeats.alive()
    ready = ready_encoders(beats)
    return ModelsAnswer(
        models=tuple(
            ModelAnswer(name=name, default=name == config.default_model, **model.model_dump())
            for name, model in config.models.items()
        ),
        encoders=tuple(
            EncoderAnswer(
                name=name,
                family=config.encoders[name].family,
                ready=name in ready,
                card=card,
                memory_bytes=encoder_counter(beats, Count.ENCODER_MEMORY, name),
                graphs=encoder_counter(beats, Count.GRAPHS, name),
                graph_bytes=encoder_counter(beats, Count.GRAPH_MEMORY, name),
            )
            for name, card in zip(names, cards, strict=True)
        ),
    )


class Health(BaseModel):
    """This process serves requests."""

    status: str = "ok"


class Readiness(BaseModel):
    """The stack can encode."""

    ready: bool = True


@router.get("/", include_in_schema=False)
async def front() -> RedirectResponse:
    """Redirect a browser that opens the server's bare address to the documentation."""
    return RedirectResponse("docs")


@router.get("/healthz", tags=["health"])
async def healthz() -> Health:
    """Alive. It calls no other service and never waits."""
    return Health()


@router.get("/readyz", tags=["health"], response_model=Readiness, responses=problems(503))
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


@router.get("/metrics", tags=["health"], response_class=Response)
async def get_metrics(services: Served) -> Response:
    """This process's own counts, and those of the fleet as its heartbeats report them."""
    text = await services.call(generate_latest, services.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
