"""Notices of changes of parts, as ``lua/jobs.lua`` publishes them to the processes that watch a job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from redis.client import PubSub
from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Notice
from epd.store import keys
from epd.store.connection import Connection, answering, read_record
from epd.store.loop_connection import AsyncConnection, LoopConnection

#: Notices that one call of ``listen`` returns at most.
MAX_NOTICES = 1000

#: Seconds between a listener's checks whether it is to end. Only the thread that reads a subscription of
#: redis-py may close it.
_CLOSE_CHECK_SECONDS = 0.25


class Notices:
    """Changes of parts, as published to the processes that watch their jobs.

    Each watcher has one subscription, which its first ``listen`` opens, and one thread that listens. On an
    event loop, ``follow`` needs no thread, unless the server is behind TLS.
    """

    def __init__(self, connection: Connection, loop_connection: AsyncConnection) -> None:
        self._connection = connection
        self._loop_connection = loop_connection
        self._closing = threading.Event()
        self._guard = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._subscriptions: dict[str, PubSub] = {}

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Return the notices that have arrived, or wait up to ``timeout`` seconds for the first one.

        Raises:
            StoreUnavailable: the subscription broke; the next call opens a new one. Notices may have been
                lost, so the caller has to read its jobs again.
        """
        with self._guard:
            reading = self._reading.setdefault(watcher, threading.Lock())
        with reading:
            try:
                return self._drain(self._subscription(watcher), time.monotonic() + timeout)
            except StoreUnavailable:
                self._drop(watcher)
                raise

    async def follow(self, watcher: str, heard: Callable[[Notice], None], opened: Callable[[], None]) -> None:
        """Pass notices on, on this event loop, until the subscription breaks. Cancel it to end it.

        Args:
            watcher: The process whose notices these are.
            heard: Called with each notice.
            opened: Called once, when no further notice will be missed. Earlier ones may have been.

        Raises:
            StoreUnavailable: the subscription broke or could not be opened.
        """

        def heard_text(text: str) -> None:
            notice = read_record(Notice, text)
            if notice is not None:
                heard(notice)

        if isinstance(self._loop_connection, LoopConnection):
            await self._loop_connection.listen(keys.events(watcher), heard_text, opened)
        notices = await asyncio.to_thread(self.listen, watcher, 0)
        opened()
        while True:
            for notice in notices:
                heard(notice)
            notices = await asyncio.to_thread(self.listen, watcher, _CLOSE_CHECK_SECONDS)

    def close(self) -> None:
        """End all subscriptions. A call that listens returns what it has; a later call subscribes again."""
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
        while len(notices) < MAX_NOTICES and not self._closing.is_set():
            wait = 0.0 if notices else min(_CLOSE_CHECK_SECONDS, max(0.0, end - time.monotonic()))
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
