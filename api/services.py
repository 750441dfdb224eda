"""What every route needs, built once by the application factory and handed to routes as one value."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from api.encode.plan import Planner
from api.jobs.completions import Completions
from epd.config import Config
from epd.contracts.errors import Overloaded, StoreUnavailable
from epd.contracts.messages import FetchMessage
from epd.processes import PeriodicThread
from epd.settings import Settings
from epd.store.open import Store
from epd.telemetry.metrics import ApiMetrics

logger = logging.getLogger(__name__)

#: Seconds for which a reading counts, and between two readings of the thread.
READING_SECONDS = 0.5
_JOIN_SECONDS = 2.0

#: Asks the broker for messages by queue; raises ``StoreUnavailable``.
Count = Callable[[], Mapping[str, int]]


class QueueDepth(PeriodicThread):
    """Messages by queue. ``start`` keeps the reading fresh until ``stop``."""

    def __init__(self, count: Count, *, count_unacked: Count = dict) -> None:
        super().__init__(
            "queue-depth",
            READING_SECONDS,
            work=self._read,
            on_error=self._note,
            wait_first=True,
            stop_seconds=_JOIN_SECONDS,
        )
        self._count = count
        self._count_unacked = count_unacked
        self._lock = Lock()
        self._read_at = float("-inf")
        self._messages: Mapping[str, int] = {}
        self._trouble = False

    def messages(self) -> Mapping[str, int]:
        """Waiting messages by queue; raises ``StoreUnavailable`` when the broker does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at > READING_SECONDS:
                self._messages = self._count()
                self._read_at = time.monotonic()
            return self._messages

    def unacked(self) -> Mapping[str, int]:
        """Messages that workers hold, by queue, asked anew each time; raises as ``messages`` does."""
        return self._count_unacked()

    def last_total(self) -> int:
        """Waiting messages of all queues at the last reading. Never waits.

        Raises:
            StoreUnavailable: the last reading failed, so the broker may take no message.
        """
        if self._trouble:
            raise StoreUnavailable("the broker does not answer")
        return sum(self._messages.values())

    def _read(self) -> None:
        self.messages()
        self._trouble = False

    def _note(self, error: Exception) -> None:
        """Whatever keeps the broker from being read may keep it from taking messages; said once."""
        if not self._trouble:
            known = isinstance(error, StoreUnavailable)
            logger.warning("the broker's queues cannot be read: %s", error, exc_info=None if known else error)
        self._trouble = True


#: Seconds after which a refused caller may come again.
RETRY_AFTER = 1.0


class ByteBudget:
    """Counts bytes that are held; refuses more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Hold bytes for the length of the block; raises ``Overloaded`` when they do not fit."""
        with self._lock:
            if self._held + nbytes > self.limit:
                raise Overloaded("too many request bodies at once", retry_after=RETRY_AFTER)
            self._held += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._held -= nbytes


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
    planner: Planner
    completions: Completions
    bodies: ByteBudget
    registry: CollectorRegistry
    metrics: ApiMetrics
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_THREADS))

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a bounded thread; the call itself is bounded in time."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self.threads)


class PlainRoute(APIRoute):
    """A route whose function takes the request and gives the response.

    Dependencies and the validation of the response are skipped: they cost more than a cached answer. What the
    route declares of both is still in the OpenAPI document.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        return self.endpoint


async def services_of(request: Request) -> Services:
    """The services of the application that serves this request. A plain function would take a thread."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Served = Annotated[Services, Depends(services_of)]
