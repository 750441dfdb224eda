"""The Celery pool of CPU workers: a thread for each message, and Celery's callbacks on the hub's thread.

A message's thread only waits for the work of its items (``tasks.flow.work``), so there may be many. Acks and
events are made on the hub's thread, in groups, since Celery's event dispatcher is not thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool, apply_target

from tasks.worker.mailbox import HubMailbox
from tasks.worker.media import process_work

logger = logging.getLogger(__name__)

#: Threads at most: prefetched messages, and those that are held back and so do not count as prefetched.
MOST_THREADS = 2048


class MediaPool(BasePool):
    """Runs each message in a thread of its own."""

    body_can_be_buffer = True
    signal_safe = False
    uses_semaphore = False
    task_join_will_block = True

    limit: int

    def on_start(self) -> None:
        """Make the threads."""
        self._mailbox = HubMailbox()
        self._threads = ThreadPoolExecutor(MOST_THREADS, "message")
        self._cold = False

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery at each (re)connection."""
        self._mailbox.connect(loop)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        """Take one message. Never blocks."""
        self._threads.submit(self._run, target, args, kwargs, callback, accept_callback)

    def on_hub(self, call: Callable[[], None]) -> None:
        """Make a call on the hub's thread, soon."""
        self._mailbox.post(call)

    def _run(self, target: Any, args: Any, kwargs: Any, callback: Any, accept_callback: Any) -> None:
        def finish(*result: Any) -> None:
            if not self._cold:
                self._mailbox.post(lambda: callback(*result))

        def start(*accepted: Any) -> None:
            # Only an event, which may wait until the hub wakes for something else.
            self._mailbox.leave(lambda: accept_callback(*accepted))

        try:
            apply_target(target, args, kwargs, finish, start)
        except Exception:
            logger.exception("a task could not be run")
            finish((1, ExceptionInfo(), 0.0))

    def on_stop(self) -> None:
        """Warm shutdown: what has started is finished and acked; the rest is published again."""
        work = process_work()
        work.close()
        self._threads.shutdown(wait=True)
        self._mailbox.drain()
        work.end()

    def on_terminate(self) -> None:
        """Cold shutdown: nothing more is acked, so all messages go back."""
        self._cold = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: a thread cannot be ended. The parts of a revoked job are dropped at its next step."""

    def grow(self, n: int = 1) -> None:
        """Celery raises the prefetch by ``n``."""
        self.limit += n

    def shrink(self, n: int = 1) -> None:
        """The reverse of ``grow``, down to 1."""
        self.limit = max(1, self.limit - n)

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "threads": len(self._threads._threads)}
