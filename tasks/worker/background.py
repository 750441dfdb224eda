"""The reaper's thread in each fetch worker: a round every few seconds, as long as the worker lives."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from epd.contracts.messages import FetchMessage
from epd.processes import PeriodicThread, log_failure
from epd.store.cache.embeddings import Embeddings
from epd.store.store import release_inline
from epd.telemetry.counters import Count
from tasks.flow.context import Context
from tasks.publish import EXPIRY_GRACE
from tasks.queue_depth import oldest_queued
from tasks.worker.counters import TOTALS

if TYPE_CHECKING:
    from epd.store.store import Store


logger = logging.getLogger(__name__)

#: Messages published again in one round.
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one round gave back."""

    flights: int = 0
    files: int = 0


@dataclass(frozen=True)
class Reaper:
    """One round a call of ``reap``.

    ``queued_since`` tells when the oldest queued message was published (Unix seconds), None with empty
    queues. While a queue is longer than a lease in time, a lease that is over says nothing: its message
    is most likely still queued, and every flight started twice would make the queue longer still. So
    flights are left alone until the queue is shorter.
    """

    store: Store
    publish: Callable[[Sequence[FetchMessage]], None]
    queued_since: Callable[[], float | None]
    lease: float
    file_age: float

    def reap(self, now: float) -> Reaped:
        """Start orphaned flights anew, free the inline bytes of finished jobs and sweep old files.

        Raises:
            StoreUnavailable: store or broker do not answer; the next round takes up what is left.
        """
        flights = self._restart_flights(now)
        return Reaped(flights, release_inline(self.store, now) + self.store.blobs.sweep(self.file_age))

    def sweep_embeddings(self) -> int:
        """Remove embedding files that no index entry names (their writer died, or the store was lost).

        Raises:
            StoreUnavailable: the store does not answer, so nothing was removed.
        """
        return self.store.embeddings.sweep(self.file_age)

    def _restart_flights(self, now: float) -> int:
        since = self.queued_since()
        if since is not None and now - since > self.lease:
            return 0
        messages = [
            message for text in self.store.flights.orphans(MOST_AT_ONCE) if (message := _parsed(text))
        ]
        again = [message.model_copy(update={"enqueued_at": now}) for message in messages]
        if again:
            logger.warning("%s flights are orphaned and start anew", len(again))
            self.publish(again)
        return len(again)


def _parsed(text: str) -> FetchMessage | None:
    try:
        return FetchMessage.from_json(text)
    except ValidationError:
        logger.exception("a waiter left an unreadable message; its item ends with its deadline")
        return None


#: Seconds between two rounds.
PERIOD = 5.0

#: Seconds for which a running round is waited for at the end.
STOP_SECONDS = 1.0

#: Embedding files without an entry are looked for in every so many rounds; the first round is one of them.
_EMBEDDING_ROUNDS = 60


def process_reaper(app: Any, context: Context) -> Reaper:
    """The reaper over this process's store and broker.

    A file is nobody's when it is older than any job that may still name it.
    """
    return Reaper(
        store=context.store,
        publish=context.publisher.fetch,
        queued_since=lambda: oldest_queued(app),
        lease=context.settings.flight_lease,
        file_age=context.settings.max_deadline + EXPIRY_GRACE,
    )


class ReaperThread(PeriodicThread):
    """Runs a reaper until it is stopped. A failed round is logged, and the next one tries again."""

    def __init__(self, reaper: Reaper, context: Context) -> None:
        failed = log_failure(logger, "reaper round")
        super().__init__("reaper", PERIOD, self._round, failed, stop_seconds=STOP_SECONDS)
        self._reaper = reaper
        self._context = context
        self._rounds = itertools.count()

    def _round(self) -> None:
        sweeps = next(self._rounds) % _EMBEDDING_ROUNDS == 0
        reaped = self._reaper.reap(self._context.clock())
        files = self._reaper.sweep_embeddings() if sweeps else 0
        TOTALS.add(Count.REAPED_MESSAGES, reaped.flights)
        TOTALS.add(Count.SWEPT_FILES, reaped.files + files)
        if reaped.flights or reaped.files or files:
            logger.info("reaped: %s, %s embedding files", reaped, files)


#: Seconds between two looks for work where the last one found none, or where the store does not answer.
MOVER_PERIOD, TROUBLE_PERIOD = 0.25, 2.0
#: Seconds of copying after which new work is asked for, well within the mover's lease.
_ROUND = 3.0


class MoverThread(PeriodicThread):
    """Runs the mover until it is stopped. A failed round is logged, and the next one tries again.

    A copy that ``stop`` breaks off does no harm.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        failed = log_failure(logger, "mover round")
        super().__init__("mover", TROUBLE_PERIOD, self._round, failed, stop_seconds=STOP_SECONDS)
        self._embeddings = embeddings

    def _round(self) -> float:
        moved = self._embeddings.move(_ROUND)
        if moved.promoted or moved.demoted or moved.failed:
            logger.info("moved: %s", moved)
        return 0.0 if moved.more else MOVER_PERIOD
