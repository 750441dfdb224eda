"""How many items wait in the broker's queues, asked at most a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock

#: Seconds for which a reading counts.
READING_SECONDS = 0.5


#: Asks the broker for messages by queue; raises ``StoreUnavailable``.
Count = Callable[[], Mapping[str, int]]


class QueueDepth:
    """Items that wait, from message counts by queue; one fetch message holds up to ``chunk_items``."""

    def __init__(self, count: Count, *, chunk_items: int, count_unacked: Count = dict) -> None:
        self._count = count
        self._count_unacked = count_unacked
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

    def unacked(self) -> Mapping[str, int]:
        """Messages that workers hold, by queue, asked anew each time; raises as ``messages`` does."""
        return self._count_unacked()

    def items(self) -> int:
        """Items that wait, at most; raises as ``messages`` does."""
        return sum(
            number * (self._chunk_items if queue == "fetch" else 1)
            for queue, number in self.messages().items()
        )
