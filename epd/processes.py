"""Background helpers of a process: threads that repeat a call, and child processes that die with it."""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
from collections.abc import Callable

from epd.contracts.errors import StoreUnavailable

_PR_SET_PDEATHSIG = 1

# Looked up once: between fork and exec nothing may be imported or allocated that a lock could guard.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class PeriodicThread(threading.Thread):
    """A daemon thread that calls ``work`` until it is stopped, and outlives every exception of it.

    Args:
        name: the thread's name.
        period: seconds between two calls, from the end of one to the start of the next.
        work: may return the seconds until its next call, in place of ``period``.
        on_error: receives what ``work`` raised, in the ``except`` block; the next call is ``period`` later.
        wait_first: the first call follows after ``period``, not at once.
        stop_seconds: ``stop`` waits this long for a running call, then leaves the thread behind.
    """

    def __init__(
        self,
        name: str,
        period: float,
        work: Callable[[], float | None],
        on_error: Callable[[Exception], None],
        *,
        wait_first: bool = False,
        stop_seconds: float = 0.0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._period = period
        self._work = work
        self._on_error = on_error
        self._wait_first = wait_first
        self._stop_seconds = stop_seconds
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        """Make no further call, and wait ``stop_seconds`` for a running one. Harmless before ``start``."""
        self._stop_asked.set()
        if self.is_alive():
            self.join(self._stop_seconds)

    def run(self) -> None:
        """Call ``work`` until ``stop``."""
        wait = self._period if self._wait_first else 0.0
        while not self._stop_asked.wait(wait):
            wait = self._call()

    def _call(self) -> float:
        """One call; the seconds until the next."""
        try:
            wait = self._work()
        except Exception as error:
            self._on_error(error)
            return self._period
        return self._period if wait is None else wait


def log_failure(logger: logging.Logger, what: str) -> Callable[[Exception], None]:
    """For ``on_error``: log that ``what`` failed, with a traceback unless the store just did not answer."""

    def log(error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            logger.warning("%s failed: %s", what, error)
        else:
            logger.exception("%s failed", what)

    return log


def die_with_parent() -> None:
    """For ``preexec_fn``: Linux kills the child when the thread that started it ends. Elsewhere: nothing."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
