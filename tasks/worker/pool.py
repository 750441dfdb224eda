"""The Celery pool of CPU workers: a thread for each message.

A message's thread only waits for the work of its items (``tasks.flow.work``), so there may be many.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.worker.hub_pool import HubPool
from tasks.worker.media import process_work

#: Threads at most: prefetched messages, and those that are held back and so do not count as prefetched.
MOST_THREADS = 2048


class MediaPool(HubPool):
    """Runs each message in a thread of its own."""

    def on_start(self) -> None:
        """Make the threads."""
        super().on_start()
        self._threads = ThreadPoolExecutor(MOST_THREADS, "message")

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
        self._threads.submit(self._run_task, target, args, kwargs, callback, accept_callback)

    def on_hub(self, call: Callable[[], None]) -> None:
        """Make a call on the hub's thread, soon."""
        self._mailbox.post(call)

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

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "threads": len(self._threads._threads)}
