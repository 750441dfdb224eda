"""Notices over pub/sub. What is published while nobody listens is gone: read the job after subscribing."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from pydantic import ValidationError
from redis.client import PubSub
from redis.exceptions import RedisError

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Notice
from epd.store import keys
from epd.store.redis.connection import Connection, answering

logger = logging.getLogger(__name__)

#: Notices handed out by one call, so that a flood is handled in bounded portions.
MAX_DRAINED = 1000


class RedisNotices:
    """``Notices`` on a server: one subscription a watcher, made by its first ``listen``."""

    def __init__(self, connection: Connection) -> None:
        """Subscribe later."""
        self._connection = connection
        self._subscriptions: dict[str, PubSub] = {}

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Notices that are there, or the first that come within ``timeout`` seconds.

        Raises:
            StoreUnavailable: the subscription broke; the next call makes a new one. Notices in between
                are lost, so read the jobs again.
        """
        try:
            return self._drain(self._subscription(watcher), time.monotonic() + timeout)
        except StoreUnavailable:
            self._drop(watcher)
            raise

    def close(self) -> None:
        """End every subscription."""
        for watcher in list(self._subscriptions):
            self._drop(watcher)

    def _subscription(self, watcher: str) -> PubSub:
        if watcher not in self._subscriptions:
            self._subscriptions[watcher] = self._connection.subscribe(keys.events(watcher))
        return self._subscriptions[watcher]

    def _drain(self, subscription: PubSub, end: float) -> list[Notice]:
        notices: list[Notice] = []
        while len(notices) < MAX_DRAINED:
            wait = 0.0 if notices else max(0.0, end - time.monotonic())
            with answering():
                message = subscription.get_message(timeout=wait)
            if message is not None:
                notices += _parsed(message["data"])
            elif notices or time.monotonic() >= end:
                break
        return notices

    def _drop(self, watcher: str) -> None:
        subscription = self._subscriptions.pop(watcher, None)
        if subscription is not None:
            with suppress(RedisError, OSError):
                subscription.close()


def _parsed(text: str) -> list[Notice]:
    try:
        return [Notice.from_json(text)]
    except ValidationError:
        logger.warning("a notice cannot be read: %.200r", text)
        return []
