"""What both pools of ours have in common: Celery's callbacks run on the thread of its hub (its event loop).

Acks and events are made there in groups, since Celery's event dispatcher is not thread-safe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool, apply_target

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


class HubPool(BasePool):
    """A Celery pool whose work runs on threads. ``limit`` is only what Celery counts its prefetch from."""

    body_can_be_buffer = True
    signal_safe = False
    uses_semaphore = False
    task_join_will_block = True

    limit: int

    def on_start(self) -> None:
        """Make the mailbox."""
        self._mailbox = HubMailbox()
        self._cold = False

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery at each (re)connection."""
        self._mailbox.connect(loop)

    def grow(self, n: int = 1) -> None:
        """Celery raises the prefetch by ``n``."""
        self.limit += n

    def shrink(self, n: int = 1) -> None:
        """The reverse of ``grow``, down to 1."""
        self.limit = max(1, self.limit - n)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: work on a thread cannot be interrupted. A revoked task's result is dropped later."""
        _log.debug("work that runs is not interrupted")

    def _run_task(self, target: Any, args: Any, kwargs: Any, callback: Any, accept_callback: Any) -> None:
        """Run a task on this thread. It is neither acked nor reported after a cold shutdown."""

        def finish(*result: Any) -> None:
            if not self._cold:
                self._mailbox.post(lambda: callback(*result))

        def start(*accepted: Any) -> None:
            # Only an event, which may wait until the hub wakes for something else.
            self._mailbox.leave(lambda: accept_callback(*accepted))

        try:
            apply_target(target, args, kwargs, finish, start)
        except Exception:
            _log.exception("a task could not be run")
            finish((1, ExceptionInfo(), 0.0))
