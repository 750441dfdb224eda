"""How many items wait in the broker's queues, asked at most a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from threading import Lock

from epd.contracts.errors import EpdError, StoreUnavailable

#: Seconds for which a reading counts.
READING_SECONDS = 0.5

_QUEUES = ("fetch", "decode", "encode")
_ACQUIRE_SECONDS = 5.0


class QueueDepth:
    """Items that wait, from message counts by queue; one fetch message holds up to ``chunk_items``."""

    def __init__(self, count: Callable[[], Mapping[str, int]], *, chunk_items: int) -> None:
        self._count = count
        self._chunk_items = chunk_items
        self._lock = Lock()
        self._read_at = float("-inf")
        self._messages: Mapping[str, int] = {}

    def messages(self) -> Mapping[str, int]:
        """Waiting messages by queue; raises ``StoreUnavailable`` when the broker does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at > READING_SECONDS:
                self._messages = self._count()
                self._read_at = time.monotonic()
            return self._messages

    def items(self) -> int:
        """Items that wait, at most; raises as ``messages`` does."""
        return sum(
            number * (self._chunk_items if queue == "fetch" else 1)
            for queue, number in self.messages().items()
        )


def broker_messages() -> Mapping[str, int]:
    """Waiting messages by queue; raises ``StoreUnavailable``."""
    from tasks.celery import app

    try:
        with app.pool.acquire(block=True, timeout=_ACQUIRE_SECONDS) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1)
            with closing(connection.channel()) as channel:
                return {name: channel.queue_declare(queue=name).message_count for name in _QUEUES}
    except EpdError:
        raise
    except Exception as error:
        raise StoreUnavailable("the broker does not answer") from error
