"""The application factory: ``uvicorn --factory api.app:create_app``."""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import handoff, status, uploads
from api.embeddings import cache_routes as cache
from api.embeddings import routes as embeddings
from api.embeddings.slices import SlicesRequest
from api.encode import route as encode
from api.encode.capacity import Capacity, QueueDepth
from api.encode.plan import Planner
from api.encode.request import EncodeRequest
from api.errors import SCHEMAS, Problem, install_error_handlers
from api.jobs import routes as jobs
from api.jobs.answers import CachedAnswers
from api.jobs.completions import Completions
from api.requests import ByteBudget, RequestLayer
from api.services import Publisher, Services
from epd.config import Config, load_config
from epd.contracts.handoff import HandoffRequest
from epd.settings import Settings, read_settings
from epd.store.open import Store, open_store
from epd.telemetry.fleet import build_registry
from epd.telemetry.logging import configure_logging
from epd.telemetry.metrics import api_metrics
from epd.version import VERSION

logger = logging.getLogger(__name__)

#: Request bodies that one process holds at once, in multiples of the largest one.
_BODIES_AT_ONCE = 4

#: Models that routes only refer to: those of bodies that are read by hand, and the problem.
_REFERRED_MODELS: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
    (EncodeRequest, "validation"),
    (SlicesRequest, "validation"),
    (HandoffRequest, "validation"),
    (Problem, "serialization"),
]

_ROUTERS: tuple[APIRouter, ...] = (
    encode.router,
    jobs.router,
    embeddings.router,
    cache.router,
    handoff.router,
    uploads.router,
    status.router,
)


def create_app(
    settings: Settings | None = None,
    *,
    config: Config | None = None,
    store: Store | None = None,
    publisher: Publisher | None = None,
    depth: QueueDepth | None = None,
) -> FastAPI:
    """The application. Arguments that are not given are made from the environment and the config file.

    Raises:
        SettingsError: a setting or the config file is wrong; it is named.
    """
    whole_process = settings is None
    settings = settings or read_settings()
    config = config or load_config(settings.config)
    configure_logging(settings.log_level)
    store = store or open_store(settings)
    depth = depth or _broker_depth()
    registry = build_registry(
        heartbeats=store.heartbeats.alive,
        stats=store.embeddings.stats,
        blob_bytes=store.blobs.used_bytes,
        queues=depth.messages,
        held=store.admissions.held,
    )
    metrics = api_metrics(registry)
    completions = Completions(store.notices, f"api-{uuid.uuid4().hex}")
    services = Services(
        settings=settings,
        config=config,
        store=store,
        publish=publisher or _celery_publisher(),
        depth=depth,
        planner=Planner(settings),
        cached=CachedAnswers(metrics),
        capacity=Capacity(settings, store, depth, completions),
        completions=completions,
        bodies=ByteBudget(_BODIES_AT_ONCE * settings.max_body_bytes),
        registry=registry,
        metrics=metrics,
    )
    app = FastAPIOffline(
        title="epd",
        summary="Media in, encoder embeddings and Decode-side metadata out.",
        version=VERSION,
        lifespan=_lifespan,
    )
    app.state.services = services
    install_error_handlers(app)
    app.add_middleware(RequestLayer, metrics=metrics)
    for router in _ROUTERS:
        app.include_router(router)
    _install_schemas(app)
    if whole_process:
        _exempt_from_collection()
    return app


def _exempt_from_collection() -> None:
    """Exempt what is loaded by now from garbage collection: it lives as long as the process.

    A full collection over 100 000 objects blocked the event loop for 0.2 s on a busy machine.
    """
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.completions.start()
    services.depth.start()
    try:
        yield
    finally:
        await asyncio.to_thread(services.depth.stop)
        await services.completions.stop()
        await services.store.async_cache.close()


def _install_schemas(app: FastAPI) -> None:
    """Add the models that routes only refer to to the OpenAPI document."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _, extra = models_json_schema(_REFERRED_MODELS, ref_template=SCHEMAS)
            schemas = made().setdefault("components", {}).setdefault("schemas", {})
            for name, schema in extra["$defs"].items():
                schemas.setdefault(name, schema)
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def _broker_depth() -> QueueDepth:
    from tasks.queue_depth import unacked_messages, waiting_messages

    return QueueDepth(waiting_messages, count_unacked=unacked_messages)


def _celery_publisher() -> Publisher:
    from tasks.publish import publish_fetch

    return publish_fetch
