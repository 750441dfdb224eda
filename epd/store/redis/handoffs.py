"""Handoffs on a server: one list each, written and read by one script a call (``lua/handoff_*.lua``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain

from epd.contracts.errors import InvalidRequest
from epd.contracts.handoff import Handoff, HandoffRequest
from epd.store import keys
from epd.store.clock import milliseconds
from epd.store.handoffs import (
    WATCH_SECONDS,
    StoredHandoff,
    body_text,
    conflict,
    given_entry,
    joined,
    missing,
    notice_of,
)
from epd.store.redis.connection import Argument, Connection
from epd.store.redis.loop_connection import LoopConnection
from epd.store.redis.scripts import Script
from epd.store.values import MAX_WATCHERS

logger = logging.getLogger(__name__)


class RedisHandoffs:
    """``Handoffs`` on a server."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A handoff lives ``ttl`` seconds after its last put."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def put(self, request_id: str, request: HandoffRequest) -> StoredHandoff:
        """Keep a handoff with the metadata of its keys, and tell who waits."""
        items = chain.from_iterable((item.key, given_entry(item)) for item in request.items)
        args: tuple[Argument, ...] = (self._ttl_ms, body_text(request), notice_of(request_id), *items)
        state, *rest = self._connection.run(Script.HANDOFF_PUT, _names(request_id), args)
        if state == "conflict":
            raise conflict()
        if state == "missing":
            raise missing(list(dict.fromkeys(rest[0])))
        body, *entries = rest[0]
        try:
            return StoredHandoff(joined(request_id, body, entries), created=state == "created")
        except ValueError as error:
            self.remove(request_id)
            raise InvalidRequest(str(error)) from error

    def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """A handoff, or None; then its coming is published to the watcher's channel."""
        args = _watch(watcher)
        return _read(request_id, self._connection.run(Script.HANDOFF_GET, _names(request_id), args))

    def remove(self, request_id: str) -> bool:
        """Forget a handoff."""
        return bool(self._connection.call("DEL", keys.handoff(request_id)))


class RedisHandoffLooks:
    """``HandoffLooks`` on a server."""

    def __init__(self, connection: LoopConnection) -> None:
        """Whoever made the connection closes it."""
        self._connection = connection

    async def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """A handoff, or None; then its coming is published to the watcher's channel."""
        args = _watch(watcher)
        return _read(request_id, await self._connection.run(Script.HANDOFF_GET, _names(request_id), args))


def _watch(watcher: str | None) -> tuple[Argument, ...]:
    return (watcher or "", milliseconds(WATCH_SECONDS), MAX_WATCHERS)


def _read(request_id: str, values: Sequence[str]) -> Handoff | None:
    """The handoff of a list as it is kept; one of another version of the code is as if not there."""
    if not values:
        return None
    try:
        return joined(request_id, values[0], values[1:])
    except ValueError as error:
        logger.warning("handoff %s cannot be read: %s", request_id, error)
        return None


def _names(request_id: str) -> list[str]:
    return [keys.handoff(request_id), keys.handoff_waiting(request_id)]
