"""Whether there is capacity for a job, by counters: one round trip to the store and none to the broker.

The store's bound on items and bytes in flight is exact: a job holds its own from admission until its parts
are final. Other things that grow have bounds too: waiting requests, files in the blob directory, and messages
that are no longer needed (a caller may cancel faster than workers drop them).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock

from api.jobs.completions import Completions
from epd.contracts.errors import EpdError, Overloaded, StoreUnavailable
from epd.contracts.job import JobRecord, PartId, PartRecord, Priority
from epd.contracts.media import NOMINAL_BYTES, Item
from epd.processes import PeriodicThread
from epd.settings import Settings
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.values import BlobKind

logger = logging.getLogger(__name__)

#: Seconds after which a refused caller may retry.
RETRY_AFTER = 2.0
#: Seconds for which a reading of the broker's queues counts, and between two readings of the thread.
READING_SECONDS = 0.5
_JOIN_SECONDS = 2.0
#: Seconds past its deadline for which a job may hold its items: workers need a while to end them.
_GRACE = 60.0
#: Messages in the broker, in multiples of the items: one item has at most two (a video's frames and audio).
_MESSAGES_AN_ITEM = 2

#: Asks the broker for the number of messages by queue; raises ``StoreUnavailable``.
Count = Callable[[], Mapping[str, int]]


class QueueDepth(PeriodicThread):
    """Messages by queue. After ``start`` the thread keeps the reading fresh until ``stop``."""

    def __init__(self, count: Count, *, count_unacked: Count = dict) -> None:
        """Nothing has been read yet."""
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
        self._failing = False

    def messages(self) -> Mapping[str, int]:
        """Waiting messages by queue; raises ``StoreUnavailable`` when the broker does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at > READING_SECONDS:
                self._messages = self._count()
                self._read_at = time.monotonic()
            return self._messages

    def unacked(self) -> Mapping[str, int]:
        """Messages that workers hold, by queue, read at each call; raises as ``messages`` does."""
        return self._count_unacked()

    def last_total(self) -> int:
        """Waiting messages of all queues at the last reading. Never blocks.

        Raises:
            StoreUnavailable: the last reading failed, so the broker may take no message.
        """
        if self._failing:
            raise StoreUnavailable("the broker does not answer")
        return sum(self._messages.values())

    def _read(self) -> None:
        self.messages()
        self._failing = False

    def _note(self, error: Exception) -> None:
        """What keeps the broker from being read may keep it from taking messages; logged once an outage."""
        if not self._failing:
            known = isinstance(error, StoreUnavailable)
            logger.warning("the broker's queues cannot be read: %s", error, exc_info=None if known else error)
        self._failing = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """The counters that decide whether a job may start."""

    settings: Settings
    store: Store
    depth: QueueDepth
    completions: Completions

    @contextmanager
    def hold(self, record: JobRecord, todo: Sequence[Item], sizes: Mapping[int, int]) -> Iterator[None]:
        """Hold a job's capacity while the block starts it; when the block raises, nothing is held.

        Args:
            record: The job.
            todo: Its items that are not answered by the cache; without any, everything fits.
            sizes: Bytes of items by index, where they are known.

        Raises:
            Overloaded: there is no capacity; nothing has changed anywhere.
            StoreUnavailable: store or broker do not answer.
        """
        if not todo:
            yield
            return
        self.check_counters(todo)
        load, until = load_of(todo, sizes), record.deadline + _GRACE
        if not self.store.admissions.admit(record.job_id, load, priority=record.priority, until=until):
            raise at_its_bound(record.priority)
        try:
            yield
        except BaseException:
            self.release(record.job_id)
            raise

    async def start(
        self,
        record: JobRecord,
        parts: dict[PartId, PartRecord],
        todo: Sequence[Item],
        *,
        hits: int,
        is_awaited: bool,
    ) -> bool:
        """Hold the capacity of a job whose items are all downloads, and write it, in one round trip.

        Args:
            record: The job.
            parts: The parts that it starts with.
            todo: Its items that are not answered by the cache.
            hits: Number of parts that were found in L1.
            is_awaited: A request waits for the end of the job, so this process is notified of that alone.

        Returns:
            False if there is no capacity; nothing has changed anywhere.

        Raises:
            StoreUnavailable: the store does not answer. The job may have been written, and may hold capacity.
        """
        watcher = self.completions.watcher
        return await self.store.async_jobs.start(
            record,
            parts,
            watcher=None if is_awaited else watcher,
            waiter=watcher if is_awaited else None,
            load=load_of(todo, {}),
            until=record.deadline + _GRACE,
            hits=hits,
        )

    def release(self, job_id: str) -> None:
        """Give back what a job holds that could not be started. Blocks."""
        with suppress(EpdError):  # then the store itself finds that there is no such job
            self.store.admissions.release(job_id)

    def check_counters(self, todo: Sequence[Item]) -> None:
        """Refuse items by what this process knows without the store. Never blocks.

        Raises:
            Overloaded: too much waits.
            StoreUnavailable: the broker does not answer.
        """
        if self.completions.full:
            raise _overloaded("too many requests wait at once")
        if self.depth.last_total() > _MESSAGES_AN_ITEM * self.settings.max_queue_items:
            raise _overloaded("too many messages wait in the queues")
        downloads = any(item.source.url is not None for item in todo)
        if downloads and self.store.blobs.room(BlobKind.SOURCE) <= 0:
            raise _overloaded("the blob directory is full")


def load_of(todo: Sequence[Item], sizes: Mapping[int, int]) -> Load:
    """The load of items; those whose size is not known count as much as their modality usually has."""
    return Load(len(todo), sum(sizes.get(item.index, NOMINAL_BYTES[item.modality]) for item in todo))


def at_its_bound(priority: Priority) -> Overloaded:
    """The error of a job that does not fit into what may be in flight."""
    return _overloaded(f"{priority} items and bytes in flight are at their bound")


def _overloaded(reason: str) -> Overloaded:
    return Overloaded(reason, retry_after=RETRY_AFTER)
