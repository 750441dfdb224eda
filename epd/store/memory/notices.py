"""Notices in one process: a bounded queue a watcher, which starts with its first ``listen``."""

from __future__ import annotations

import time
from collections import deque

from epd.contracts.job import Notice
from epd.store.memory.state import MAX_NOTICES, MemoryState


class MemoryNotices:
    """``Notices`` over shared memory state."""

    def __init__(self, state: MemoryState) -> None:
        """Share the state with the jobs."""
        self._state = state

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Notices that are there, or the first that come within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        with self._state.lock:
            queue = self._state.notices.setdefault(watcher, deque(maxlen=MAX_NOTICES))
            while not queue:
                left = end - time.monotonic()
                if left <= 0 or not self._state.published.wait(left):
                    break
            notices = list(queue)
            queue.clear()
            return notices

    def close(self) -> None:
        """Forget every queue."""
        with self._state.lock:
            self._state.notices.clear()
