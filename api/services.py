"""What every route needs, built once by the application factory and passed to routes as one value."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from api.encode.capacity import Capacity, QueueDepth
from api.encode.plan import Planner
from api.jobs.answers import CachedAnswers
from api.jobs.completions import Completions
from api.requests import ByteBudget
from epd.config import Config
from epd.contracts.messages import FetchMessage
from epd.settings import Settings
from epd.store.open import Store
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
    """The parts behind the routes."""

    settings: Settings
    config: Config
    store: Store
    publish: Publisher
    depth: QueueDepth
    planner: Planner
    cached: CachedAnswers
    capacity: Capacity
    completions: Completions
    bodies: ByteBudget
    registry: CollectorRegistry
    metrics: ApiMetrics
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_THREADS))

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in one of a bounded number of threads; the call itself is bounded in time."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self.threads)


class PlainRoute(APIRoute):
    """A route whose function takes the request and gives the response.

    Dependencies and the validation of the response are skipped, since they cost more than a cached answer.
    What the route declares of both is still in the OpenAPI document.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        return self.endpoint


async def services_of(request: Request) -> Services:
    """The services of the application that serves this request.

    It is a coroutine function because FastAPI would run a plain one in a thread.
    """
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Served = Annotated[Services, Depends(services_of)]
