"""Completion notices: one listener thread a process passes them to the requests that wait.

Workers publish each change of a part to the channel of every process that watches its job. The listener
reads this process's channel and wakes the subscriptions of the job on the event loop. A notice is only a
hint: a waiting request reads the job again, so a lost notice costs time and never an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Event, Thread

from fastapi import Request

from epd.contracts.errors import EpdError, Overloaded
from epd.contracts.job import Notice
from epd.store.jobs import Notices

logger = logging.getLogger(__name__)

#: Subscriptions that one process keeps at once.
MAX_SUBSCRIPTIONS = 8192
#: Notices that one subscription keeps; more only set ``missed``.
MAX_NOTICES = 1024

_LISTEN_SECONDS = 0.2
_PAUSE_AFTER_ERROR = 1.0
_DISPATCH_SECONDS = 10.0
_JOIN_SECONDS = 5.0


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
            await asyncio.wait_for(self._changed.wait(), max(seconds, 0))
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
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the listener thread; notices are dispatched on this loop."""
        self._stopping.clear()
        self._thread = Thread(target=self._listen, args=(loop,), name="completions", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the listener thread and its subscription; bounded in time."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
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

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        lost = False
        while not self._stopping.is_set():
            try:
                notices = self._notices.listen(self.watcher, _LISTEN_SECONDS)
                if notices or lost:
                    dispatched = asyncio.run_coroutine_threadsafe(self._dispatch(notices, lost), loop)
                    dispatched.result(_DISPATCH_SECONDS)
                lost = False
            except EpdError as error:
                logger.warning("completion notices are lost for now: %s", error)
                lost = True
                self._stopping.wait(_PAUSE_AFTER_ERROR)
            except Exception:
                if loop.is_closed():
                    return
                logger.exception("completion notices could not be dispatched")
                lost = True
                self._stopping.wait(_PAUSE_AFTER_ERROR)

    async def _dispatch(self, notices: Sequence[Notice], lost: bool) -> None:
        for notice in notices:
            for subscription in self._by_job.get(notice.job_id, ()):
                subscription.offer(notice)
        if lost:
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
