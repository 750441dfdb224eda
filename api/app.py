"""The application factory: ``uvicorn --factory api.app:create_app``."""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline

from api import handoff, status, uploads
from api.embeddings import cache_routes as cache
from api.embeddings import routes as embeddings
from api.encode import route as encode
from api.encode.plan import Planner
from api.errors import install_error_handlers
from api.jobs import routes as jobs
from api.jobs.completions import Completions
from api.middleware import RequestLayer
from api.openapi import install_schemas
from api.services import ByteBudget, Publisher, QueueDepth, Services
from epd.config import Config, load_config
from epd.settings import Settings, read_settings
from epd.store.open import Store, open_store
from epd.telemetry.fleet import build_registry
from epd.telemetry.logging import configure_logging
from epd.telemetry.metrics import api_metrics
from epd.version import VERSION

logger = logging.getLogger(__name__)

#: Request bodies that one process holds at once, in multiples of the largest one.
_BODIES_AT_ONCE = 4

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
    """The application. What is not given is made from the environment and the config file.

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
    services = Services(
        settings=settings,
        config=config,
        store=store,
        publish=publisher or _celery_publisher(),
        depth=depth,
        planner=Planner(settings),
        completions=Completions(store.notices, f"api-{uuid.uuid4().hex}"),
        bodies=ByteBudget(_BODIES_AT_ONCE * settings.max_body_bytes),
        registry=registry,
        metrics=api_metrics(registry),
    )
    app = FastAPIOffline(
        title="epd",
        summary="Media in, encoder embeddings and Decode-side metadata out.",
        version=VERSION,
        lifespan=_lifespan,
    )
    app.state.services = services
    install_error_handlers(app)
    app.add_middleware(RequestLayer, metrics=services.metrics)
    for router in _ROUTERS:
        app.include_router(router)
    install_schemas(app)
    if whole_process:
        _spare_from_collection()
    return app


def _spare_from_collection() -> None:
    """Take what is loaded by now out of the garbage collector's rounds: it lives as long as the process.

    A full round over 100 000 objects held the event loop up for 0.2 s on a busy machine.
    """
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.completions.start(asyncio.get_running_loop())
    services.depth.start()
    try:
        yield
    finally:
        await asyncio.to_thread(services.depth.stop)
        await services.completions.stop()
        await services.store.async_cache.close()


def _broker_depth() -> QueueDepth:
    from tasks.queue_depth import unacked_messages, waiting_messages

    return QueueDepth(waiting_messages, count_unacked=unacked_messages)


def _celery_publisher() -> Publisher:
    from tasks.publish import publish_fetch

    return publish_fetch
