"""One item through ``fetch``: digest, cached parts, claims, and the decode message of what is missing."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace

from epd.contracts.errors import (
    BlobSpaceFull,
    CallerFault,
    EncoderNotReady,
    EpdError,
    Internal,
    StoreUnavailable,
)
from epd.contracts.job import PartId, Stage
from epd.contracts.media import BlobRef, Item, Modality
from epd.contracts.messages import DecodeMessage, FetchMessage, Wanted
from epd.contracts.timings import FETCH, FETCH_QUEUE
from epd.lookup import Found, look_up, needs_of
from epd.store.base import Claim
from epd.telemetry.counters import Count
from tasks.flow.claims import claim, withdraw
from tasks.flow.context import Context, Tally
from tasks.flow.parts import audio_part, expire_item, fail_item, finish, main_part, open_parts
from tasks.flow.source import LookUp, Resolved, known_digest, resolve

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


def _postponed(reason: EpdError) -> Fetched:
    return Fetched(reason=reason, tally={Count.RETRIED_ITEMS: 1})


def _failed(context: Context, message: FetchMessage, item: Item, error: EpdError) -> Fetched:
    try:
        fail_item(context, message, item, error)
    except StoreUnavailable as trouble:
        return _postponed(trouble)
    return Fetched(tally={Count.FETCH_ITEMS: 1, Count.FETCH_FAILURES: 1})


def _fetch(context: Context, message: FetchMessage, item: Item) -> Fetched:
    started = context.clock()
    if started >= message.deadline:
        expire_item(context, message, item)
        return _dropped(context, message, item, Count.FETCH_EXPIRED)
    wanted_parts = open_parts(context, message, item, Stage.FETCH)
    if not wanted_parts:
        return _dropped(context, message, item, Count.FETCH_DROPPED)
    resolved = resolve(context, item, _look_up_of(context, message, item))
    timings = {
        FETCH_QUEUE: max(0.0, started - message.enqueued_at),
        FETCH: context.clock() - started,
    }
    try:
        found = _only_open(resolved.found, wanted_parts)
        decode = settle(context, message, found, resolved.blob, timings)
    except BaseException:
        free_source(context, resolved.blob)
        raise
    if decode is None:
        free_source(context, resolved.blob)
    return Fetched(decode=decode, tally=_tally(resolved, decode, timings[FETCH]))


def _dropped(context: Context, message: FetchMessage, item: Item, reason: Count) -> Fetched:
    """Leave the flights of an item that is not fetched, as far as its digest is known without a download.

    It may be on its way because a flight was passed on to it; who waits there must not wait for its lease.
    """
    digest = known_digest(context, item)
    with suppress(CallerFault, EncoderNotReady):
        if digest is not None:
            missing = _look_up_of(context, message, item)(digest).missing
            withdraw(context, message, item, missing)
    return Fetched(tally={reason: 1})


def _tally(resolved: Resolved, decode: DecodeMessage | None, seconds: float) -> Tally:
    downloaded = resolved.blob is not None and resolved.found.item.source.url is not None
    return {
        Count.FETCH_ITEMS: 1,
        Count.FETCH_BYTES: resolved.blob.nbytes if downloaded and resolved.blob else 0,
        Count.FETCH_SECONDS: seconds,
        Count.CACHE_HITS: len(resolved.found.finished),
        Count.CACHE_MISSES: len(resolved.found.missing),
        Count.FLIGHTS_JOINED: int(decode is None and not resolved.found.complete),
    }


def _look_up_of(context: Context, message: FetchMessage, item: Item) -> LookUp:
    """The look-up of a digest under the message's model. Raises at once where an encoder is missing."""
    _, model = context.config.model(message.model)
    cards = context.cards.of(message.model, model)
    needs_of(item, "", model=model, cards=cards)

    def look_up_digest(digest: str) -> Found:
        return look_up([(item, digest)], model=model, cards=cards, embeddings=context.store.embeddings)[0]

    return look_up_digest


def _only_open(found: Found, wanted_parts: frozenset[PartId]) -> Found:
    """Without the main part where that is final already: an item fetched again for its sound alone."""
    return found if main_part(found.item) in wanted_parts else replace(found, main=None)


def settle(
    context: Context, message: FetchMessage, found: Found, blob: BlobRef | None, timings: dict[str, float]
) -> DecodeMessage | None:
    """Finish what is cached, claim what is missing; the decode message of what is ours to make, or None."""
    if not _finish_cached(context, message, found, timings):
        return None
    missing = _claimed(context, message, found, timings)
    if not missing or blob is None:
        return None
    tracks = {wanted.track: wanted for wanted in missing}
    main = tracks.get(found.item.modality)
    return DecodeMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=context.clock(),
        attempt=message.attempt,
        trace=message.trace,
        item=found.item,
        digest=found.digest,
        blob=blob,
        main=main,
        audio=next((wanted for wanted in missing if wanted is not main), None),
        timings=timings,
    )


def _finish_cached(context: Context, message: FetchMessage, found: Found, timings: dict[str, float]) -> bool:
    """Finish the parts that are final at once. False: the job is gone.

    The audio part is added before the main part ends, or the job could end without it.
    """
    main, audio = main_part(found.item), audio_part(found.item)
    has_audio_part = audio != main and (audio in found.finished or _has_sound(found))
    if has_audio_part and not context.store.jobs.add_part(message.job_id, audio):
        return False
    for part, record in found.finished.items():
        finish(context, message, part, record, timings)
    return True


def _has_sound(found: Found) -> bool:
    """Whether the cached frames say that the file has an audio track that is still to be made."""
    if found.audio is None:
        return False
    record = found.finished.get(main_part(found.item))
    info = record.metadata.audio if record is not None and record.metadata is not None else None
    return info is not None and info.present


def _claimed(
    context: Context, message: FetchMessage, found: Found, timings: dict[str, float]
) -> tuple[Wanted, ...]:
    """What of the missing is ours to make.

    Where only decoding tells which parts there are, decoding claims: a video that waited here for the
    frames of another job would end with them, before its own audio part were known.
    """
    if found.item.modality is Modality.VIDEO and found.audio is not None:
        return found.missing
    item = found.item
    return tuple(
        wanted for wanted in found.missing if claim(context, message, item, wanted, timings) is Claim.OWNED
    )


def free_source(context: Context, blob: BlobRef | None) -> None:
    """Remove downloaded bytes that nothing needs any more; uploads stay."""
    if blob is not None:
        context.store.blobs.free(blob)
