"""What a worker process has once: its context, made on first use and again after a fork, and its totals."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from epd.config import load_config
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.settings import settings
from epd.store.open import open_store
from epd.telemetry.counters import Count, Counters
from tasks import publish
from tasks.flow.context import Context

#: What the tasks of this process have done.
TOTALS = Counters()


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


_context: Context | None = None
_lock = threading.Lock()


def _forget_after_fork() -> None:
    """A child must use neither its parent's connections nor a lock that another thread of it held."""
    global _context, _lock
    _context, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def process_context() -> Context:
    """The context of this process.

    Raises:
        SettingsError: a setting or the config file is wrong.
    """
    global _context  # noqa: PLW0603
    with _lock:
        if _context is None:
            own = settings()
            _context = Context(own, load_config(own.config), open_store(own), BrokerPublisher())
        return _context


def count(tally: Mapping[str, float]) -> None:
    """Add what a task did to the totals of this process."""
    for name, amount in tally.items():
        TOTALS.add(Count(name), amount)
