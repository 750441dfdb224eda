"""How many messages wait in the broker's queues, read by a thread, so that no request waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread

from epd.contracts.errors import StoreUnavailable

logger = logging.getLogger(__name__)

#: Seconds for which a reading counts, and between two readings of the thread.
READING_SECONDS = 0.5
_JOIN_SECONDS = 2.0

#: Asks the broker for messages by queue; raises ``StoreUnavailable``.
Count = Callable[[], Mapping[str, int]]


class QueueDepth:
    """Messages by queue. ``start`` keeps the reading fresh until ``stop``."""

    def __init__(self, count: Count, *, count_unacked: Count = dict) -> None:
        self._count = count
        self._count_unacked = count_unacked
        self._lock = Lock()
        self._read_at = float("-inf")
        self._messages: Mapping[str, int] = {}
        self._trouble = False
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to read, from now on."""
        self._thread = Thread(target=self._run, name="queue-depth", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a reading that hangs is left behind."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

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

    def _run(self) -> None:
        while not self._stopped.wait(READING_SECONDS):
            try:
                self.messages()
            except Exception as error:
                self._note(error)
            else:
                self._trouble = False

    def _note(self, error: Exception) -> None:
        """Whatever keeps the broker from being read may keep it from taking messages; said once."""
        if not self._trouble:
            known = isinstance(error, StoreUnavailable)
            logger.warning("the broker's queues cannot be read: %s", error, exc_info=None if known else error)
        self._trouble = True
