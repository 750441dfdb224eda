"""The background threads of a fetch worker: the reaper, and the mover where there is an L2 directory.

The reaper restarts flights whose leader has died, and removes files that no one will read any more.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epd.contracts.messages import FetchMessage
from epd.processes import PeriodicThread, log_failure
from epd.store.cache.embeddings import Embeddings
from epd.store.open import Store, release_inline
from epd.telemetry.counters import Count
from tasks.envelope import EXPIRY_GRACE
from tasks.flow.context import Context
from tasks.flow.flights import waiter_message
from tasks.process import TOTALS
from tasks.queue_depth import oldest_queued

logger = logging.getLogger(__name__)

#: Most messages that one round of the reaper publishes again.
MOST_AT_ONCE = 100

#: Seconds between two rounds of the reaper.
PERIOD = 5.0

#: The first of this many rounds also looks for embedding files without an entry.
_EMBEDDING_ROUNDS = 60

#: Seconds from one round of the mover to the next, if it found nothing and if it failed.
MOVER_PERIOD, FAILURE_PERIOD = 0.25, 2.0

#: Seconds of copying after which the mover asks for new work, well within its lease.
_MOVER_ROUND = 3.0

#: Seconds for which ``stop`` waits for a running round.
STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one round did: flights restarted, and files removed."""

    flights: int = 0
    files: int = 0


@dataclass(frozen=True)
class Reaper:
    """Restarts flights and removes old files; one call of ``reap`` is one round.

    Flights are not restarted while the oldest queued message has waited longer than a lease: then a lease
    that has ended proves nothing, since its message is most likely still queued, and a flight that starts
    twice would make the queue even longer.

    Attributes:
        store: where flights, jobs and files are.
        publish: puts messages on the fetch queue.
        queued_since: when the oldest queued message was published, in Unix seconds; None with empty queues.
        lease: seconds for which a flight counts without being renewed.
        file_age: seconds after which a blob or an embedding file without an entry is no longer needed.
    """

    store: Store
    publish: Callable[[Sequence[FetchMessage]], None]
    queued_since: Callable[[], float | None]
    lease: float
    file_age: float

    def reap(self, now: float) -> Reaped:
        """Restart orphaned flights, free the inline bytes of finished jobs and remove old files.

        Args:
            now: Unix seconds.

        Raises:
            StoreUnavailable: store or broker do not answer; the next round does the rest.
        """
        flights = self._restart_flights(now)
        return Reaped(flights, release_inline(self.store, now) + self.store.blobs.sweep(self.file_age))

    def sweep_embeddings(self) -> int:
        """Remove embedding files without an index entry, whose writer died or whose store was lost.

        Raises:
            StoreUnavailable: the store does not answer, so nothing was removed.
        """
        return self.store.embeddings.sweep(self.file_age)

    def _restart_flights(self, now: float) -> int:
        since = self.queued_since()
        if since is not None and now - since > self.lease:
            return 0
        messages = [
            message for text in self.store.flights.orphans(MOST_AT_ONCE) if (message := waiter_message(text))
        ]
        again = [message.model_copy(update={"enqueued_at": now}) for message in messages]
        if again:
            logger.warning("restarting %s orphaned flights", len(again))
            self.publish(again)
        return len(again)


def process_reaper(context: Context) -> Reaper:
    """The reaper of this process. A file that is older than any job that may name it is removed."""
    return Reaper(
        store=context.store,
        publish=context.publisher.fetch,
        queued_since=oldest_queued,
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


class MoverThread(PeriodicThread):
    """Runs the mover until it is stopped. A failed round is logged, and the next one tries again.

    A copy that ``stop`` interrupts does no harm.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        failed = log_failure(logger, "mover round")
        super().__init__("mover", FAILURE_PERIOD, self._round, failed, stop_seconds=STOP_SECONDS)
        self._embeddings = embeddings

    def _round(self) -> float:
        moved = self._embeddings.move(_MOVER_ROUND)
        if moved.promoted or moved.demoted or moved.failed:
            logger.info("moved: %s", moved)
        return 0.0 if moved.more else MOVER_PERIOD
