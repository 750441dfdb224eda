"""Handoffs: what Prefill puts for Decode, by request id (``lua/handoffs.lua``).

A handoff is stored as the body that Prefill put (keys and places), followed by the index entry of each item
at that time. So it outlives the eviction of the embeddings, and Decode never needs the index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
from pydantic import ValidationError

from epd.contracts.embedding import Entry
from epd.contracts.errors import HandoffConflict, InvalidRequest, NotFound
from epd.contracts.handoff import Handoff, HandoffItem, HandoffRequest, Placement, handoff_topic
from epd.contracts.job import Notice, State
from epd.store import keys
from epd.store.cache.entry import entry_text, read_entry, ref_of
from epd.store.connection import Connection
from epd.store.keys import milliseconds
from epd.store.loop_connection import AsyncConnection
from epd.store.scripts import Argument, Script
from epd.store.values import MAX_WATCHERS

logger = logging.getLogger(__name__)

#: Seconds for which a watcher is notified of a handoff after it last asked for it.
WATCH_SECONDS = 15.0
#: Keys that the error of a put names.
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class StoredHandoff:
    """A handoff that was put. ``created`` is false if an equal one existed."""

    handoff: Handoff
    created: bool


class Handoffs:
    """Handoffs by request id. A handoff is checked before it is written, so a refused one is never seen."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A handoff lives ``ttl`` seconds after its last put."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def put(self, request_id: str, request: HandoffRequest) -> StoredHandoff:
        """Store a handoff with the metadata of its keys, and notify its watchers.

        Putting an equal one again renews its life. This takes one round trip, a new handoff two.

        Raises:
            NotFound: neither the index nor the request has the metadata of some keys, which are named.
            HandoffConflict: another handoff of this id exists.
            InvalidRequest: an item has another number of placeholders than rows, or its metadata is wrong.
        """
        body = _body_text(request)
        stored, values = self._values(request_id, body, request)
        if stored:
            if (handoff := _read(request_id, values)) is not None:
                return StoredHandoff(handoff, created=False)
            self.remove(request_id)  # Another version of the code wrote it: the same as none.
            _, values = self._values(request_id, body, request)
        handoff = _checked(request_id, values)
        args: tuple[Argument, ...] = (self._ttl_ms, _notice_text(request_id), *values)
        state, *rest = self._connection.run(Script.HANDOFF_PUT, _keys_of(request_id), args)
        if state == "conflict":
            raise _conflict()
        if state == "held":  # An equal one was put since. Its entries are the ones that Decode reads.
            handoff = _checked(request_id, rest[0])
        return StoredHandoff(handoff, created=state == "created")

    def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """Return a handoff, or None. Then its arrival will be published to the watcher's channel."""
        args = _watch_args(watcher)
        return _read(request_id, self._connection.run(Script.HANDOFF_GET, _keys_of(request_id), args))

    def remove(self, request_id: str) -> bool:
        """Delete a handoff. False if there was none."""
        return bool(self._connection.call("DEL", keys.handoff(request_id)))

    def _values(self, request_id: str, body: str, request: HandoffRequest) -> tuple[bool, list[str]]:
        """The values of a handoff (body, then entries), and whether they are stored already.

        Renews the life of those that are.
        """
        items = chain.from_iterable((item.key, _given_entry(item)) for item in request.items)
        args: tuple[Argument, ...] = (self._ttl_ms, body, *items)
        state, *rest = self._connection.run(Script.HANDOFF_ENTRIES, [keys.handoff(request_id)], args)
        if state == "conflict":
            raise _conflict()
        if state == "missing":
            raise _missing(list(dict.fromkeys(rest[0])))
        return (True, rest[0]) if state == "held" else (False, [body, *rest[0]])


class AsyncHandoffs:
    """``Handoffs.get`` for an event loop, which it never blocks."""

    def __init__(self, connection: AsyncConnection) -> None:
        """Borrow a connection; its owner closes it."""
        self._connection = connection

    async def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """Return a handoff, or None. Then its arrival will be published to the watcher's channel."""
        args = _watch_args(watcher)
        return _read(request_id, await self._connection.run(Script.HANDOFF_GET, _keys_of(request_id), args))


def _keys_of(request_id: str) -> list[str]:
    return [keys.handoff(request_id), keys.handoff_waiting(request_id)]


def _watch_args(watcher: str | None) -> tuple[Argument, ...]:
    return (watcher or "", milliseconds(WATCH_SECONDS), MAX_WATCHERS)


def _notice_text(request_id: str) -> str:
    """The notice of a handoff's arrival, in the form of a job's notices."""
    notice = Notice(job_id=handoff_topic(request_id), part="handoff", state=State.DONE, job_final=True)
    return notice.to_json()


def _body_text(request: HandoffRequest) -> str:
    """What Prefill put, without metadata. Keys are sorted, so that equal requests give equal texts.

    Raises:
        InvalidRequest: it cannot be written as JSON.
    """
    fields = request.model_dump(mode="json", exclude_none=True, exclude={"items": {"__all__": {"metadata"}}})
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise InvalidRequest(f"body: {error}") from error


def _given_entry(item: Placement) -> str:
    """The index entry of the metadata that an item brings, empty if it brings none.

    Raises:
        InvalidRequest: the metadata is not that of an embedding, or cannot be written as JSON.
    """
    if item.metadata is None:
        return ""
    try:
        return entry_text(Entry(ref=ref_of(item.metadata), metadata=item.metadata))
    except (ValueError, TypeError) as error:  # orjson raises TypeError
        raise InvalidRequest(f"metadata of {item.key}: {error}") from None


def _read(request_id: str, values: Sequence[str]) -> Handoff | None:
    """The handoff of stored values. None if there is none, or another version of the code wrote it."""
    if not values:
        return None
    try:
        return _parse(request_id, values)
    except ValueError as error:
        logger.warning("handoff %s cannot be read: %s", request_id, error)
        return None


def _checked(request_id: str, values: Sequence[str]) -> Handoff:
    """The handoff of values that are to be stored; raises ``InvalidRequest``."""
    try:
        return _parse(request_id, values)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _parse(request_id: str, values: Sequence[str]) -> Handoff:
    """The handoff of a body and its entries.

    Raises:
        ValueError: they cannot be read, or placeholders and rows disagree. The text names the item.
    """
    fields = orjson.loads(values[0])
    places = enumerate(zip(fields.pop("items"), values[1:], strict=True))
    items = tuple(_item(number, place, entry) for number, (place, entry) in places)
    return Handoff(request_id=request_id, items=items, **fields)


def _item(number: int, place: dict[str, Any], entry: str) -> HandoffItem:
    try:
        return HandoffItem(metadata=read_entry(place.pop("key"), entry).metadata, **place)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"items[{number}]: {why}") from error


def _conflict() -> HandoffConflict:
    return HandoffConflict("another handoff with this request id exists; it was not changed")


def _missing(missing: Sequence[str]) -> NotFound:
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return NotFound(f"no such embedding, or it was evicted: {', '.join(missing[:_MAX_NAMED])}{more}")
