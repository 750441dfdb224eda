"""The texts in which handoffs are kept.

A handoff is kept as what Prefill put (keys and places) and the index entry of each item, as the index had it
then. So it outlives the embeddings' eviction, and Decode needs the index for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from epd.contracts.errors import HandoffConflict, InvalidRequest, NotFound
from epd.contracts.handoff import Handoff, HandoffItem, HandoffRequest, Placement, handoff_topic
from epd.contracts.job import Notice, State
from epd.contracts.metadata import Entry
from epd.store.entry_text import entry_text, read_entry, ref_of

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
