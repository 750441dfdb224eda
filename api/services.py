"""What every route needs, built once by the application factory and handed to routes as one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ParamSpec, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from api.budget import ByteBudget
from api.completions import Completions
from api.depth import QueueDepth
from epd.config import Config
from epd.contracts.messages import FetchMessage
from epd.settings import Settings
from epd.store.base import Store
from epd.telemetry.metrics import ApiMetrics

P = ParamSpec("P")
T = TypeVar("T")

#: Calls to the store and the broker that may run at once in one process; later ones queue behind them.
MAX_THREADS = 32


class Publisher(Protocol):
    """Puts fetch messages on the broker in one batch; raises an ``EpdError`` when it cannot."""

    def __call__(self, messages: Sequence[FetchMessage]) -> None:
        """Publish all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """The parts behind the routes. ``depth`` tells what the queues hold."""

    settings: Settings
    config: Config
    store: Store
    publish: Publisher
    depth: QueueDepth
    completions: Completions
    bodies: ByteBudget
    registry: CollectorRegistry
    metrics: ApiMetrics
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_THREADS))

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a bounded thread; the call itself is bounded in time."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self.threads)


async def services_of(request: Request) -> Services:
    """The services of the application that serves this request; no plain function, which takes a thread."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Served = Annotated[Services, Depends(services_of)]
