"""What a worker process has once: its context, the threads and children that work, and its totals.

All are created on first use, and again after a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd.config import load_config
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.settings import settings
from epd.store.open import open_store
from epd.telemetry.counters import Count, Counters
from tasks import publish
from tasks.flow.context import Context

if TYPE_CHECKING:
    from tasks.flow.work import Work

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


@dataclass(frozen=True)
class _Resources:
    context: Context
    work: Work | None


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


def process_work() -> Work:
    """The threads, and the decoding children, of a process for which ``open_work`` was called."""
    work = _process_resources().work
    assert work is not None
    return work


def open_work(*, decodes: bool) -> Work:
    """Make the threads of a CPU worker, and its decoding children if it decodes.

    Raises:
        SettingsError: as ``process_context``.
    """
    global _resources  # noqa: PLW0603
    from tasks.flow.work import start_work

    context = process_context()
    with _lock:
        work = start_work(context, decodes=decodes)
        _resources = _Resources(work.context, work)
        return work


def _process_resources() -> _Resources:
    global _resources  # noqa: PLW0603
    with _lock:
        if _resources is None:
            own = settings()
            context = Context(own, load_config(own.config), open_store(own), BrokerPublisher())
            _resources = _Resources(context, None)
        return _resources


def count(tally: Mapping[str, float]) -> None:
    """Add what a task did to the totals of this process."""
    for name, amount in tally.items():
        TOTALS.add(Count(name), amount)
