"""This process's means: one store, config and publisher, opened on first use and anew after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from epd.config import load_config
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from epd.settings import settings
from epd.store.open import open_store
from tasks import publish
from tasks.flow.context import Context

#: Downloads that run at once in one process beside the tasks' own threads.
_DOWNLOADS = 32


class BrokerPublisher:
    """``tasks.flow.context.Publisher`` over the broker."""

    def fetch(self, messages: Sequence[FetchMessage], *, countdown: float = 0.0) -> None:
        """To the fetch queue."""
        publish.publish_fetch(messages, countdown=countdown)

    def decode(self, messages: Sequence[DecodeMessage], *, countdown: float = 0.0) -> None:
        """To the decode queue."""
        publish.publish_decode(messages, countdown=countdown)

    def encode(self, messages: Sequence[EncodeMessage]) -> None:
        """To the encode queue."""
        publish.publish_encode(messages)


@dataclass(frozen=True)
class _Means:
    context: Context
    downloads: ThreadPoolExecutor


_means: _Means | None = None
_lock = threading.Lock()


def _forget_after_fork() -> None:
    """A child must use neither its parent's connections nor a lock that another thread of it held."""
    global _means, _lock
    _means, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def process_context() -> Context:
    """The context of this process.

    Raises:
        SettingsError: a setting or the config file is wrong.
    """
    return _process_means().context


def download_executor() -> ThreadPoolExecutor:
    """The bounded executor on which the items of a chunk are fetched side by side."""
    return _process_means().downloads


def _process_means() -> _Means:
    global _means  # noqa: PLW0603
    with _lock:
        if _means is None:
            own = settings()
            context = Context(own, load_config(own.config), open_store(own), BrokerPublisher())
            _means = _Means(context, ThreadPoolExecutor(_DOWNLOADS, "download"))
        return _means
