"""What a worker process has once: its context and download threads, and the totals of its tasks.

Context and threads are created on first use, and again after a fork. Totals are counted in the main process,
for its heartbeat: tasks return what they did as ``{counter name: amount}``, and Celery gives the main process
the ``repr`` of that, from prefork children as well as from threads. So children need no other channel.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from epd.config import load_config
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.settings import settings
from epd.store.open import open_store
from epd.telemetry.counters import Count, Counters
from tasks import publish
from tasks.flow.context import Context

#: Threads for downloads in one process, in addition to those of its tasks.
_DOWNLOADS = 32

#: What the tasks of this process have done.
TOTALS = Counters()

_CRASHES = {"epd.fetch": Count.FETCH_FAILURES, "epd.decode": Count.DECODE_FAILURES}


class BrokerPublisher:
    """``tasks.flow.context.Publisher`` on the broker."""

    def fetch(self, messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
        """Publish to the fetch queue."""
        publish.publish_fetch(messages, countdown=countdown)

    def decode(self, messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
        """Publish to the decode queue."""
        publish.publish_decode(messages, countdown=countdown)

    def encode(self, messages: Sequence[EncodeMessage]) -> None:
        """Publish to the encode queue."""
        publish.publish_encode(messages)


@dataclass(frozen=True)
class _Resources:
    context: Context
    downloads: ThreadPoolExecutor


_resources: _Resources | None = None
_lock = threading.Lock()


def _forget_after_fork() -> None:
    """A child must use neither its parent's connections nor a lock that another thread of it held."""
    global _resources, _lock
    _resources, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def process_context() -> Context:
    """The context of this process.

    Raises:
        SettingsError: a setting or the config file is wrong.
    """
    return _process_resources().context


def download_executor() -> ThreadPoolExecutor:
    """The executor that fetches the items of a chunk concurrently, on at most ``_DOWNLOADS`` threads."""
    return _process_resources().downloads


def _process_resources() -> _Resources:
    global _resources  # noqa: PLW0603
    with _lock:
        if _resources is None:
            own = settings()
            context = Context(own, load_config(own.config), open_store(own), BrokerPublisher())
            _resources = _Resources(context, ThreadPoolExecutor(_DOWNLOADS, "download"))
        return _resources


def count_result(text: str, totals: Counters = TOTALS) -> None:
    """Count the ``repr`` of what one run of a task returned. Names that are no counters are ignored."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return
    for name, amount in value.items() if isinstance(value, dict) else ():
        if name in set(Count) and isinstance(amount, int | float):
            totals.add(Count(name), float(amount))


def count_crash(task: str, totals: Counters = TOTALS) -> None:
    """Count a run without a result: the task raised, or its child died."""
    if task in _CRASHES:
        totals.add(_CRASHES[task])
