"""Handoffs on a server: one list each, written and read by one script a call (``lua/handoffs.lua``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain

from epd.contracts.handoff import Handoff, HandoffRequest
from epd.store import keys
from epd.store.clock import milliseconds
from epd.store.handoffs import (
    WATCH_SECONDS,
    StoredHandoff,
    body_text,
    checked,
    conflict,
    given_entry,
    joined,
    missing,
    notice_of,
)
from epd.store.redis.connection import Argument, Connection
from epd.store.redis.loop_connection import LoopConnection, ThreadConnection
from epd.store.redis.scripts import Script
from epd.store.values import MAX_WATCHERS

logger = logging.getLogger(__name__)


class Handoffs:
    """Handoffs by request id; each lives ``handoff_ttl`` seconds.

    A call is one round trip, a new put two. A handoff is checked before it is written, so nobody ever sees
    one that is refused.
    """

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A handoff lives ``ttl`` seconds after its last put."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def put(self, request_id: str, request: HandoffRequest) -> StoredHandoff:
        """Keep a handoff with the metadata of its keys, and notify who waits. The same again renews its life.

        Raises:
            NotFound: neither index nor request has the metadata of a key; each is named.
            HandoffConflict: another one of that id is there.
            InvalidRequest: an item's placeholders are not as many as its rows; nothing is kept.
        """
        body = body_text(request)
        held, values = self._values(request_id, body, request)
        if held:
            if (handoff := _read(request_id, values)) is not None:
                return StoredHandoff(handoff, created=False)
            self.remove(request_id)  # of another version of the code: as if not there
            _, values = self._values(request_id, body, request)
        handoff = checked(request_id, values[0], values[1:])
        args: tuple[Argument, ...] = (self._ttl_ms, notice_of(request_id), *values)
        state, *rest = self._connection.run(Script.HANDOFF_PUT, _names(request_id), args)
        if state == "conflict":
            raise conflict()
        if state == "held":  # the same was put meanwhile; its entries are what Decode reads
            handoff = checked(request_id, rest[0][0], rest[0][1:])
        return StoredHandoff(handoff, created=state == "created")

    def _values(self, request_id: str, body: str, request: HandoffRequest) -> tuple[bool, list[str]]:
        """Body and entries of a handoff, and whether they are kept already; then their time starts anew."""
        items = chain.from_iterable((item.key, given_entry(item)) for item in request.items)
        args: tuple[Argument, ...] = (self._ttl_ms, body, *items)
        state, *rest = self._connection.run(Script.HANDOFF_ENTRIES, [keys.handoff(request_id)], args)
        if state == "conflict":
            raise conflict()
        if state == "missing":
            raise missing(list(dict.fromkeys(rest[0])))
        return (True, rest[0]) if state == "held" else (False, [body, *rest[0]])

    def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """A handoff, or None: then its arrival will be published to the watcher's channel."""
        args = _watch(watcher)
        return _read(request_id, self._connection.run(Script.HANDOFF_GET, _names(request_id), args))

    def remove(self, request_id: str) -> bool:
        """Forget a handoff; False when there was none."""
        return bool(self._connection.call("DEL", keys.handoff(request_id)))


class HandoffLooks:
    """``Handoffs.get`` for an event loop: no call blocks it."""

    def __init__(self, connection: LoopConnection | ThreadConnection) -> None:
        """Whoever made the connection closes it."""
        self._connection = connection

    async def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """As ``Handoffs.get``."""
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
