"""How many messages a CPU worker holds: what its threads and children need, and not what waits for a turn.

A message whose downloads are all held back, because its job or its host has as many running as it may, does
not count. Otherwise one job with hundreds of slow URLs would fill the worker, and the message of another
caller could not even be received.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from epd.processes import PeriodicThread, log_failure
from epd.telemetry.counters import Count
from tasks.flow.work import Work
from tasks.process import TOTALS

logger = logging.getLogger(__name__)

#: Seconds between two looks.
PERIOD = 0.2

#: Messages that are held back, at most, in addition to those that count.
MOST_HELD_BACK = 512

#: A worker that only decodes holds about this many seconds of work, and at most so many messages.
DECODE_SECONDS, MOST_DECODES = 0.5, 64

#: The weight of the newest measurement in the mean duration of a decode.
_NEWEST = 0.3


class PrefetchThread(PeriodicThread):
    """Adjusts the prefetch of Celery's consumer to the work."""

    def __init__(self, consumer: Any, work: Work, *, fetches: bool) -> None:
        """Adjust ``consumer``, Celery's own object. A worker that does not fetch only decodes."""
        super().__init__("prefetch", PERIOD, self._look, log_failure(logger, "prefetch"), wait_first=True)
        self._consumer = consumer
        self._items = work
        self._fetches = fetches
        self._qos: Any = None
        self._wanted = 0
        self._seen = (0.0, 0.0)
        self._mean = 0.0

    def _look(self) -> None:
        if self._fetches:
            chunk = self._items.context.settings.chunk_items
            held_back = math.ceil(self._items.downloads.held_back() / chunk)
            wanted = self._consumer.initial_prefetch_count + min(held_back, MOST_HELD_BACK)
        else:
            wanted = self._decodes()
        self._consumer.pool.on_hub(lambda: self._adjust(wanted))

    def _decodes(self) -> int:
        """As many messages as decode in ``DECODE_SECONDS``, but two for each child."""
        assert self._items.decodes is not None
        totals = TOTALS.snapshot()
        seen = totals.get(Count.DECODE_ITEMS, 0.0), totals.get(Count.DECODE_SECONDS, 0.0)
        items, seconds = seen[0] - self._seen[0], seen[1] - self._seen[1]
        self._seen = seen
        if items > 0:
            newest = seconds / items
            self._mean = newest if not self._mean else (1 - _NEWEST) * self._mean + _NEWEST * newest
        at_once = self._items.decodes.threads
        fitting = math.ceil(DECODE_SECONDS * at_once / self._mean) if self._mean else 0
        return max(2 * at_once, min(fitting, MOST_DECODES))

    def _adjust(self, wanted: int) -> None:
        """On the hub's thread. The value itself is also changed by Celery, for messages that start later."""
        qos = self._consumer.qos
        if qos is None:
            return
        if qos is not self._qos:  # a new connection
            self._qos, self._wanted = qos, self._consumer.initial_prefetch_count
        difference, self._wanted = wanted - self._wanted, wanted
        if difference > 0:
            qos.increment_eventually(difference)
        elif difference < 0:
            qos.decrement_eventually(-difference)
