"""The texts in which handoffs are kept.

A handoff is kept as what Prefill put (keys and places) and the index entry of each item, as the index had it
then. So it outlives the embeddings' eviction, and Decode needs the index for nothing.
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
from epd.store.connection import Argument, Connection
from epd.store.keys import milliseconds
from epd.store.loop_connection import LoopConnection, ThreadConnection
from epd.store.scripts import Script
from epd.store.values import MAX_WATCHERS

#: Seconds for which a process that waits is told of a handoff, unless it asks again.
WATCH_SECONDS = 15.0
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class StoredHandoff:
    """A handoff that was put; ``created`` is False where it was there already."""

    handoff: Handoff
    created: bool


def body_text(request: HandoffRequest) -> str:
    """What Prefill put, in one spelling, so that equal requests are equal texts. Without metadata.

    Raises:
        InvalidRequest: it cannot be written as JSON.
    """
    fields = request.model_dump(mode="json", exclude_none=True, exclude={"items": {"__all__": {"metadata"}}})
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise InvalidRequest(f"body: {error}") from error


def given_entry(item: Placement) -> str:
    """The index entry of the metadata that came along with an item, empty where none did.

    Raises:
        InvalidRequest: it is no embedding's, or cannot be written as JSON.
    """
    if item.metadata is None:
        return ""
    try:
        return entry_text(Entry(ref=ref_of(item.metadata), metadata=item.metadata))
    except (ValueError, TypeError) as error:  # orjson's is a TypeError
        raise InvalidRequest(f"metadata of {item.key}: {error}") from None


def joined(request_id: str, body: str, entries: Sequence[str]) -> Handoff:
    """The handoff of the texts that are kept.

    Raises:
        ValueError: they cannot be read, or placeholders and rows disagree; the item's number is named.
    """
    fields = orjson.loads(body)
    places = enumerate(zip(fields.pop("items"), entries, strict=True))
    items = tuple(_item(number, place, text) for number, (place, text) in places)
    return Handoff(request_id=request_id, items=items, **fields)


def checked(request_id: str, body: str, entries: Sequence[str]) -> Handoff:
    """The handoff that is to be kept of these texts.

    Raises:
        InvalidRequest: as ``joined``.
    """
    try:
        return joined(request_id, body, entries)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _item(number: int, place: dict[str, Any], text: str) -> HandoffItem:
    try:
        return HandoffItem(metadata=read_entry(place.pop("key"), text).metadata, **place)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"items[{number}]: {why}") from error


def notice_of(request_id: str) -> str:
    """What is published when a handoff comes, as jobs' notices are."""
    notice = Notice(job_id=handoff_topic(request_id), part="handoff", state=State.DONE, job_final=True)
    return notice.to_json()


def conflict() -> HandoffConflict:
    """The error of a put that says something else than the one before."""
    return HandoffConflict("another handoff of that request id is there; it is left as it is")


def missing(keys: Sequence[str]) -> NotFound:
    """The error of a put whose metadata is nowhere."""
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    return NotFound(f"no such embedding, or it was evicted: {', '.join(keys[:_MAX_NAMED])}{more}")


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
