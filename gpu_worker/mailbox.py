"""Work for the hub's thread, from any thread, in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


class HubMailbox:
    """A first-in-first-out list of calls that one thread makes.

    kombu's hub keeps its callbacks in a set, so it promises no order; an item's start and its end have one.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._hub: Any = None

    def connect(self, hub: Any) -> None:
        """Have the hub (kombu's event loop) make the calls; again after each reconnect."""
        self._hub = hub
        hub.call_soon(self.drain)

    def post(self, call: Callable[[], None]) -> None:
        """Leave a call; wakes the hub."""
        self._calls.append(call)
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def drain(self) -> None:
        """Make all calls that are there. What one raises is logged: the others are not its business."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except Exception:
                _log.exception("a call on the hub's thread raised")

    def nudge(self) -> None:
        """From another thread: end the hub's wait, so that it runs what its own callbacks put off.

        A callback that the hub's thread adds while it runs callbacks waits for the next poll to return.
        """
        if self._hub is not None:
            self._hub.call_soon(_nothing)


def _nothing() -> None:
    """Being called is all."""
