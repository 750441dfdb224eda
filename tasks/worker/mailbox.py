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
        hub.call_soon(self.drain)

    def post(self, call: Callable[[], None], *, wakes: bool = True) -> None:
        """Add a call. One that does not wake the hub is made with the next one that does."""
        self._calls.append(call)
        if wakes and self._hub is not None:
            self._hub.call_soon(self.drain)

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

    def wake(self) -> None:
        """End the hub's current poll, from another thread.

        A callback that the hub's thread adds while it runs callbacks waits until the next poll returns.
        """
        if self._hub is not None:
            self._hub.call_soon(_nothing)


def _nothing() -> None:
    """A callback whose only purpose is to end a poll."""
