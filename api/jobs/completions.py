"""Completion notices: one listener a process passes them to the requests that wait.

Workers publish each change of a part to the channel of every process that watches its job. The listener
reads this process's channel on the event loop and wakes the subscriptions of the job. A notice is only a
hint: a waiting request reads the job again, so a lost notice costs time and never an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from fastapi import Request

from epd.contracts.errors import EpdError, Overloaded
from epd.contracts.job import Notice
from epd.store.notices import Notices

logger = logging.getLogger(__name__)

#: Subscriptions that one process keeps at once.
MAX_SUBSCRIPTIONS = 8192
#: Notices that one subscription keeps; more only set ``missed``.
MAX_NOTICES = 1024

_PAUSE_AFTER_ERROR = 1.0


class Subscription:
    """The notices of one job for one waiting request. ``missed``: some may have been lost."""

    def __init__(self, *, final_only: bool) -> None:
        self.missed = False
        self._final_only = final_only
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._changed = asyncio.Event()

    def offer(self, notice: Notice) -> None:
        """Add a notice (on the event loop)."""
        if self._final_only and not notice.job_final:
            return
        self.missed = self.missed or len(self._notices) == MAX_NOTICES
        self._notices.append(notice)
        self._changed.set()

    def wake(self) -> None:
        """Have the waiting request look again, because notices may have been lost."""
        self.missed = True
        self._changed.set()

    async def wait(self, seconds: float) -> list[Notice]:
        """Notices since the last call; waits at most ``seconds`` for the first. Empty on a timeout."""
        try:
            async with asyncio.timeout(max(seconds, 0)):  # wait_for would make each wait a task
                await self._changed.wait()
        except TimeoutError:
            return []
        self._changed.clear()
        notices = list(self._notices)
        self._notices.clear()
        return notices


class Completions:
    """Listens on the channel of one watcher id and dispatches to subscriptions by job."""

    def __init__(self, notices: Notices, watcher: str, *, limit: int = MAX_SUBSCRIPTIONS) -> None:
        self.watcher = watcher
        self._notices = notices
        self._limit = limit
        self._count = 0
        self._by_job: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen, on the running event loop."""
        self._listener = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """End the listener and its subscription; bounded in time."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        await asyncio.to_thread(self._notices.close)

    @property
    def full(self) -> bool:
        """Whether no further request may wait."""
        return self._count >= self._limit

    @property
    def waiting(self) -> int:
        """Subscriptions that are open now."""
        return self._count

    @contextmanager
    def subscribe(self, job_id: str, *, final_only: bool = False) -> Iterator[Subscription]:
        """Receive the notices of a job, or only that of its end; raises ``Overloaded`` beyond the limit."""
        if self.full:
            raise Overloaded("too many requests wait at once", retry_after=1.0)
        subscription = Subscription(final_only=final_only)
        self._count += 1
        self._by_job[job_id].add(subscription)
        try:
            yield subscription
        finally:
            self._count -= 1
            self._by_job[job_id].discard(subscription)
            if not self._by_job[job_id]:
                del self._by_job[job_id]

    async def _listen(self) -> None:
        while True:
            try:
                await self._notices.follow(self.watcher, self._hear, self._wake_all)
            except EpdError as error:
                logger.warning("completion notices are lost for now: %s", error)
            except Exception:
                logger.exception("completion notices could not be dispatched")
            await asyncio.sleep(_PAUSE_AFTER_ERROR)

    def _hear(self, notice: Notice) -> None:
        for subscription in self._by_job.get(notice.job_id, ()):
            subscription.offer(notice)

    def _wake_all(self) -> None:
        """Have every waiting request look again, because notices may have been lost."""
        for subscriptions in self._by_job.values():
            for subscription in subscriptions:
                subscription.wake()


class ClientConnection:
    """The connection of a waiting request.

    ``disconnected`` becomes true when the client leaves; then ``on_disconnect`` is called.
    """

    def __init__(self) -> None:
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None

    async def _watch(self, request: Request) -> None:
        """Wait for the end of the connection. The body has been read, so the next message announces it."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


@asynccontextmanager
async def watched(request: Request) -> AsyncIterator[ClientConnection]:
    """Watch the client's connection for the length of the block."""
    client = ClientConnection()
    task = asyncio.create_task(client._watch(request))
    try:
        yield client
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
