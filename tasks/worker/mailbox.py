"""Calls for the thread of Celery's hub (its event loop), from the other threads of a worker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


class HubMailbox:
    """Calls for the hub's thread, made in the order in which they were posted.

    kombu's hub (its event loop) keeps callbacks in a set and so promises no order, but a task has to start
    before it ends.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._hub: Any = None

    def connect(self, hub: Any) -> None:
        """Have this hub make the calls. Call it again after each reconnect."""
        self._hub = hub
        hub.on_tick.add(self.drain)
        hub.call_soon(self.drain)

    def post(self, call: Callable[[], None]) -> None:
        """Add a call and wake the hub."""
        self._calls.append(call)
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def leave(self, call: Callable[[], None]) -> None:
        """Add a call that can wait for the hub's next tick: at most the poller's wait at its bells."""
        self._calls.append(call)

    def drain(self) -> None:
        """Make all pending calls. An exception is logged and does not affect the other calls."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except Exception:
                _log.exception("a call on the hub's thread raised")
