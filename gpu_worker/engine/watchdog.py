"""Detects device work that never ends, from a thread of its own.

Only time in which the watching thread itself runs counts, so a process that was frozen (SIGSTOP, a suspended
machine) does not look like one that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger(__name__)

_LONGEST_PERIOD = 1.0
_TURNS_PER_LIMIT = 8


@dataclass(slots=True)
class _Work:
    what: str
    seconds: float = 0.0


class Watchdog:
    """Calls ``on_hung`` once, from its own thread, if work takes longer than ``limit`` seconds."""

    def __init__(self, limit: float, on_hung: Callable[[str], None]) -> None:
        """``on_hung`` takes one sentence that says what hung."""
        self._limit = limit
        self._on_hung = on_hung
        self._period = min(_LONGEST_PERIOD, limit / _TURNS_PER_LIMIT)
        self._running: dict[int, _Work] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watchdog", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. May be called twice, or without ``start``."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_PERIOD)

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Count the time of the calling thread until the block ends. Must not be nested."""
        thread = threading.get_ident()
        self._running[thread] = _Work(what)
        try:
            yield
        finally:
            del self._running[thread]

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopped.wait(self._period):
            now = time.monotonic()
            hung = self._hung_after(now - last)
            last = now
            if hung is not None:
                _log.critical("%s", hung)
                self._on_hung(hung)
                return

    def _hung_after(self, elapsed: float) -> str | None:
        """What hangs, so many seconds after the last check. Much longer gaps are cut to two periods."""
        elapsed = min(elapsed, 2 * self._period)
        for work in list(self._running.values()):
            work.seconds += elapsed
            if work.seconds > self._limit:
                return f"{work.what} has not ended after {work.seconds:.0f} s"
        return None
