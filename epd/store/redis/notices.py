"""Notices over pub/sub. What is published while nobody listens is gone: read the job after subscribing."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from redis.client import PubSub
from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Notice
from epd.store import keys
from epd.store.redis.connection import Connection, answering
from epd.store.redis.reading import read_record

#: Notices handed out by one call, so that a flood is handled in bounded portions.
MAX_DRAINED = 1000

#: Seconds after which a listener looks whether it is to end. redis-py's subscriptions may not be closed by
#: another thread than the one that reads.
_SLICE = 0.25


class Notices:
    """Changes of part states, published to the processes that watch a job.

    Each watcher has one subscription, which its first ``listen`` makes, and one thread that listens.
    """

    def __init__(self, connection: Connection) -> None:
        """Subscribe later."""
        self._connection = connection
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._subscriptions: dict[str, PubSub] = {}

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Notices that are there, or the first that come within ``timeout`` seconds.

        Raises:
            StoreUnavailable: the subscription broke; the next call makes a new one. Notices in between
                are lost, so read the jobs again.
        """
        with self._guard:
            reading = self._reading.setdefault(watcher, threading.Lock())
        with reading:
            try:
                return self._drain(self._subscription(watcher), time.monotonic() + timeout)
            except StoreUnavailable:
                self._drop(watcher)
                raise

    def close(self) -> None:
        """End every subscription; who listens gets what is there, at once. A later call subscribes anew."""
        self._closing.set()
        with self._guard:
            readers, self._reading = dict(self._reading), {}
        for watcher, reading in readers.items():
            with reading:
                self._drop(watcher)
        self._closing.clear()

    def _subscription(self, watcher: str) -> PubSub:
        if watcher not in self._subscriptions:
            self._subscriptions[watcher] = self._connection.subscribe(keys.events(watcher))
        return self._subscriptions[watcher]

    def _drain(self, subscription: PubSub, end: float) -> list[Notice]:
        notices: list[Notice] = []
        while len(notices) < MAX_DRAINED and not self._closing.is_set():
            wait = 0.0 if notices else min(_SLICE, max(0.0, end - time.monotonic()))
            with answering():
                message = subscription.get_message(timeout=wait)
            if message is not None:
                notice = read_record(Notice, message["data"])
                notices += [notice] if notice is not None else []
            elif notices or time.monotonic() >= end:
                break
        return notices

    def _drop(self, watcher: str) -> None:
        subscription = self._subscriptions.pop(watcher, None)
        if subscription is not None:
            with suppress(RedisError, OSError):
                subscription.close()
