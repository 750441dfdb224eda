"""The reaper's thread in each fetch worker: a round every few seconds, as long as the worker lives."""

from __future__ import annotations

import logging
import threading
from typing import Any

from epd.contracts.errors import StoreUnavailable
from epd.telemetry.counters import Count
from tasks.flow.context import Context
from tasks.publish import EXPIRY_GRACE
from tasks.worker_backlog import oldest_queued
from tasks.worker_counters import TOTALS
from workers.reaper import Reaper

logger = logging.getLogger(__name__)

#: Seconds between two rounds.
PERIOD = 5.0

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


class ReaperThread:
    """Runs a reaper until it is stopped. Trouble is logged, and the next round tries again."""

    def __init__(self, reaper: Reaper, context: Context, period: float = PERIOD) -> None:
        self._reaper = reaper
        self._context = context
        self._period = period
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        """Begin with a first round at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the running round, which is waited for only briefly."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        rounds = 0
        while not self._stopped.is_set():
            self._round(rounds)
            rounds += 1
            self._stopped.wait(self._period)

    def _round(self, rounds: int) -> None:
        try:
            reaped = self._reaper.reap(self._context.clock())
            files = self._reaper.sweep_embeddings() if rounds % _EMBEDDING_ROUNDS == 0 else 0
            TOTALS.add(Count.REAPED_MESSAGES, reaped.flights)
            TOTALS.add(Count.SWEPT_FILES, reaped.files + files)
            if reaped.flights or reaped.files or files:
                logger.info("reaped: %s, %s embedding files", reaped, files)
        except StoreUnavailable as error:
            logger.warning("reaper round left out: %s", error)
        except Exception:
            logger.exception("reaper round failed")
