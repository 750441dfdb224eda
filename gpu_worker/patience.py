"""Insisting on a call to the store while the store is down: work that is done is worth the wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from epd.contracts.errors import StoreUnavailable

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Patience:
    """Repeats calls until they are through, their time is over, or the worker stops. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ended = threading.Event()

    @property
    def ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._ended.is_set()

    def end(self) -> None:
        """From now on every call is tried once."""
        self._ended.set()

    def insist(self, call: Callable[[], object], until: float) -> bool:
        """Call until it does not raise ``StoreUnavailable``; ``until`` is Unix seconds.

        Returns False when it never was through. The call has to be safe to repeat.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                call()
            except StoreUnavailable as error:
                if self._clock() + pause > until or self._ended.wait(pause):
                    _log.error("given up: %s", error)
                    return False
                _log.warning("the store is away, trying again: %s", error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return True
