"""One item through ``fetch``: digest, cached parts, claims, and the decode message of what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from epd.contracts.errors import (
    BlobSpaceFull,
    CallerFault,
    EncoderNotReady,
    EpdError,
    Internal,
    SourceFault,
    StoreUnavailable,
)
from epd.contracts.job import PartId, Stage
from epd.contracts.media import BlobRef, Item
from epd.contracts.messages import DecodeMessage, FetchMessage, Wanted
from epd.contracts.timings import FETCH, FETCH_QUEUE
from epd.identity import download_key
from epd.lookup import Found, last_digest
from epd.telemetry.counters import Count
from tasks.flow.claims import withdraw
from tasks.flow.context import Context, Tally
from tasks.flow.download_flight import call_off, fail_along, take_along, take_off
from tasks.flow.lease import kept_flights
from tasks.flow.parts import expire_item, fail_item, main_part, open_parts
from tasks.flow.settling import LookUp, look_up_of, only_open, settle
from tasks.flow.source import Resolved, download_anew, resolve

logger = logging.getLogger(__name__)

#: Trouble that passes: the item is fetched again a little later, until its deadline.
PASSING = (EncoderNotReady, BlobSpaceFull, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of an item: a decode message, a postponement with its reason, or nothing more to do."""

    decode: DecodeMessage | None = None
    reason: EpdError | None = None
    tally: Tally = field(default_factory=dict)


def fetch_item(context: Context, message: FetchMessage, item: Item) -> Fetched:
    """Fetch one item of a chunk. Faults of the item end in its parts; nothing is raised.

    Trouble of the store comes back as a postponement, since the item's parts cannot be finished without it.
    """
    try:
        return _fetch(context, message, item)
    except PASSING as error:
        return _postponed(error)
    except EpdError as error:
        return _failed(context, message, item, error)
    except Exception:
        logger.exception("job %s item %s: fetch failed", message.job_id, item.index)
        return _failed(context, message, item, Internal("fetching failed; the worker's log tells why"))


def give_up(context: Context, message: FetchMessage, item: Item, error: EpdError) -> None:
    """Fail an item that has no time left for another try; who waits for its download makes it."""
    fail_item(context, message, item, error)
    call_off(context, message, item)


def _postponed(reason: EpdError) -> Fetched:
    return Fetched(reason=reason, tally={Count.RETRIED_ITEMS: 1})


def _failed(context: Context, message: FetchMessage, item: Item, error: EpdError) -> Fetched:
    try:
        give_up(context, message, item, error)
    except StoreUnavailable as trouble:
        return _postponed(trouble)
    return Fetched(tally={Count.FETCH_ITEMS: 1, Count.FETCH_FAILURES: 1})


@dataclass(frozen=True, slots=True)
class _Work:
    """An item at the fetcher. ``flies``: others may wait for its download. ``started`` is Unix seconds."""

    context: Context
    message: FetchMessage
    item: Item
    look_up: LookUp
    flies: bool
    started: float

    def timings(self) -> dict[str, float]:
        """This stage's times so far, in seconds."""
        waited = max(0.0, self.started - self.message.enqueued_at)
        return {FETCH_QUEUE: waited, FETCH: self.context.clock() - self.started}


def _fetch(context: Context, message: FetchMessage, item: Item) -> Fetched:
    started = context.clock()
    if started >= message.deadline:
        expire_item(context, message, item)
        return _dropped(context, message, item, Count.FETCH_EXPIRED)
    wanted_parts = open_parts(context, message, item, Stage.FETCH)
    if not wanted_parts:
        return _dropped(context, message, item, Count.FETCH_DROPPED)
    look_up = look_up_of(context, message, item)
    # An item that wants no more than its sound has no part that could wait for a download.
    flies = item.source.url is not None and main_part(item) in wanted_parts
    if flies and not take_off(context, message, item):
        return Fetched(tally={Count.FETCH_ITEMS: 1, Count.FLIGHTS_JOINED: 1})
    opened = partial(_look_up_open, look_up, wanted_parts)
    return _run(_Work(context, message, item, opened, flies, started))


def _look_up_open(look_up: LookUp, wanted_parts: frozenset[PartId], digest: str) -> Found:
    return only_open(look_up(digest), wanted_parts)


def _run(work: _Work) -> Fetched:
    resolved = _asked(work, lambda: resolve(work.context, work.message, work.item, work.look_up))
    try:
        owned = settle(work.context, work.message, resolved.found, work.timings())
        if owned and resolved.blob is None:
            resolved, owned = _after_all(work, resolved)
        decode = _decode_message(work, resolved.found, resolved.blob, owned)
        # Where only decoding tells which parts there are, it also takes the companions along.
        if work.flies and (decode is None or decode.audio is None):
            take_along(work.context, work.message, work.item, resolved.found.digest)
    except BaseException:
        free_source(work.context, resolved.blob)
        raise
    if decode is None:
        free_source(work.context, resolved.blob)
    return Fetched(decode=decode, tally=_tally(resolved, decode, work.timings()[FETCH]))


def _asked(work: _Work, ask: Callable[[], Resolved]) -> Resolved:
    """Ask the item's source, its flight being kept. A fault of the source is that of all who wait for it."""
    context, message, item = work.context, work.message, work.item
    flights = [download_key(item.source.url, item.modality)] if work.flies and item.source.url else []
    try:
        with kept_flights(context, flights):
            return ask()
    except (CallerFault, SourceFault) as error:
        if work.flies:
            fail_along(context, message, item, error)
        raise


def _after_all(work: _Work, resolved: Resolved) -> tuple[Resolved, tuple[Wanted, ...]]:
    """Download after all: what the item was to join has ended meanwhile, so that it is its own to make."""
    anew = _asked(work, lambda: download_anew(work.context, work.item, work.look_up))
    if anew.found.digest != resolved.found.digest:
        withdraw(work.context, work.message, work.item, resolved.found.missing)
    return anew, settle(work.context, work.message, anew.found, work.timings())


def _dropped(context: Context, message: FetchMessage, item: Item, reason: Count) -> Fetched:
    """Leave the flights of an item that is not fetched, as far as its digest is known without a download.

    It may be on its way because a flight was passed on to it; who waits there must not wait for its lease.
    """
    call_off(context, message, item)
    digest = last_digest(item, context.store.sources)
    with suppress(CallerFault, EncoderNotReady):
        if digest is not None:
            missing = look_up_of(context, message, item)(digest).missing
            withdraw(context, message, item, missing)
    return Fetched(tally={reason: 1})


def _tally(resolved: Resolved, decode: DecodeMessage | None, seconds: float) -> Tally:
    body = resolved.blob if resolved.asked else None
    return {
        Count.FETCH_ITEMS: 1,
        Count.FETCH_BYTES: 0 if body is None else body.nbytes,
        Count.DOWNLOADS: int(body is not None),
        Count.NOT_MODIFIED: int(resolved.asked and body is None),
        Count.FETCH_SECONDS: seconds,
        Count.SAVED_BYTES: resolved.found.saved_bytes if resolved.blob is None else 0,
        Count.CACHE_HITS: len(resolved.found.finished),
        Count.CACHE_MISSES: len(resolved.found.missing),
        Count.FLIGHTS_JOINED: int(decode is None and not resolved.found.complete),
    }


def _decode_message(
    work: _Work, found: Found, blob: BlobRef | None, owned: Sequence[Wanted]
) -> DecodeMessage | None:
    """The message for what is the item's own to make; None where that is nothing."""
    if not owned or blob is None:
        return None
    message = work.message
    main = next((wanted for wanted in owned if wanted.track is found.item.modality), None)
    return DecodeMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=work.context.clock(),
        attempt=message.attempt,
        trace=message.trace,
        item=found.item,
        digest=found.digest,
        blob=blob,
        main=main,
        audio=next((wanted for wanted in owned if wanted is not main), None),
        timings=work.timings(),
    )


def free_source(context: Context, blob: BlobRef | None) -> None:
    """Remove downloaded bytes that nothing needs any more; uploads stay."""
    if blob is not None:
        context.store.blobs.free(blob)
