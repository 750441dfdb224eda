"""The items of a chunk through ``fetch``: digest, cached parts, claims, and decode messages of the rest."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

from epd.contracts.errors import (
    BlobSpaceFull,
    CallerFault,
    EncoderNotReady,
    EpdError,
    Internal,
    StoreUnavailable,
)
from epd.contracts.job import Stage
from epd.contracts.media import BlobRef, Item
from epd.contracts.messages import DecodeMessage, FetchMessage, Wanted
from epd.lookup import last_digest
from epd.telemetry.counters import Count
from tasks.flow.context import Context, Tally
from tasks.flow.flights import give_up_fetch, join_or_lead, leave_download, serve_waiters
from tasks.flow.item import FetchRun, ItemRun, pause_of
from tasks.flow.settle import look_up_of, look_up_of_all, settle
from tasks.flow.source import ItemSource, Resolved

logger = logging.getLogger(__name__)

#: Trouble that passes: the item is fetched again a little later, until its deadline.
_PASSING = (EncoderNotReady, BlobSpaceFull, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What became of an item: a decode message, a postponement with its reason, or nothing more to do."""

    decode: DecodeMessage | None = None
    reason: EpdError | None = None
    tally: Tally = field(default_factory=dict)


def fetch_chunk(context: Context, message: FetchMessage, executor: Executor) -> Tally:
    """Fetch the items of a chunk side by side and publish what goes on in one batch; returns the counts.

    Raises:
        StoreUnavailable: the broker did not take the messages; the whole chunk may be run again.
    """
    results = list(zip(message.items, _fetch_all(context, message, executor), strict=True))
    decodes = [result.decode for _, result in results if result.decode is not None]
    try:
        context.publisher.decode(decodes)
        later = [(item, result.reason) for item, result in results if result.reason is not None]
        if later:
            _postpone(context, message, later)
    except StoreUnavailable:
        for decode in decodes:
            context.store.blobs.free(decode.blob)
        raise
    return _sum(result.tally for _, result in results)


def _fetch_all(context: Context, message: FetchMessage, executor: Executor) -> Iterable[_Fetched]:
    """The items' outcomes in order. The calling thread fetches the last one itself."""
    *others, last = message.items
    running = [executor.submit(_fetch_item, context, message, item) for item in others]
    own = _fetch_item(context, message, last)
    return [*(future.result() for future in running), own]


def _postpone(context: Context, message: FetchMessage, later: Sequence[tuple[Item, EpdError]]) -> None:
    """Fetch items again in one later chunk. Those without time for another try fail with their reason."""
    pause = pause_of(message, now=context.clock())
    if pause is not None:
        logger.info("job %s: %d items postponed: %s", message.job_id, len(later), later[0][1])
        chunk = message.model_copy(update={"items": tuple(item for item, _ in later)})
        context.publisher.fetch([chunk], countdown=pause)
        return
    for item, reason in later:
        give_up_fetch(ItemRun(context, message, item), reason)


def _sum(tallies: Iterable[Tally]) -> Tally:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return {str(name): amount for name, amount in total.items() if amount}


def _fetch_item(context: Context, message: FetchMessage, item: Item) -> _Fetched:
    """Fetch one item. Its faults end in its parts; nothing is raised.

    Trouble of the store comes back as a postponement, since parts cannot be finished without it.
    """
    run = FetchRun(context, message, item)
    try:
        return _fetch(run)
    except _PASSING as error:
        return _postponed(error)
    except EpdError as error:
        return _failed(run, error)
    except Exception:
        logger.exception("job %s item %s: fetch failed", message.job_id, item.index)
        return _failed(run, Internal("fetching failed; the worker's log tells why"))


def _postponed(reason: EpdError) -> _Fetched:
    return _Fetched(reason=reason, tally={Count.RETRIED_ITEMS: 1})


def _failed(run: FetchRun, error: EpdError) -> _Fetched:
    try:
        give_up_fetch(run, error)
    except StoreUnavailable as trouble:
        return _postponed(trouble)
    return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FETCH_FAILURES: 1})


def _fetch(run: FetchRun) -> _Fetched:
    if run.expired:
        run.expire()
        return _dropped(run, Count.FETCH_EXPIRED)
    open_parts = run.open_parts(Stage.FETCH)
    if not open_parts:
        return _dropped(run, Count.FETCH_DROPPED)
    look_up = look_up_of(run, open_parts)
    # An item that is here for its sound alone has no open part that could wait for a download.
    shared = run.item.source.url is not None and run.main_part in open_parts
    if shared and not join_or_lead(run):
        return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FLIGHTS_JOINED: 1})
    source = ItemSource(run, look_up, leads=shared)
    return _claim_and_hand_on(source, source.resolve())


def _claim_and_hand_on(source: ItemSource, resolved: Resolved) -> _Fetched:
    """Claim what is missing and make the decode message of what is the item's own to make.

    Where only decoding can tell which parts there are, it also serves those who wait for the download.
    """
    run, found = source.run, resolved.found
    try:
        owned = settle(run, found).owned
        if owned and resolved.blob is None:
            return _claim_and_hand_on(source, _download_after_all(source, resolved))
        decode = _decode_message(run, resolved, owned)
        if source.leads and (decode is None or decode.audio is None):
            serve_waiters(run, found.digest)
    except BaseException:
        _free(run, resolved.blob)
        raise
    if decode is None:
        _free(run, resolved.blob)
    return _Fetched(decode=decode, tally=_tally(resolved, decode, run.spent()))


def _download_after_all(source: ItemSource, resolved: Resolved) -> Resolved:
    """Download an item that was to join a flight which has ended, so that it is the item's own to make."""
    again = source.download()
    if again.found.digest != resolved.found.digest:
        source.run.withdraw(resolved.found.missing)
    return again


def _decode_message(run: FetchRun, resolved: Resolved, owned: Sequence[Wanted]) -> DecodeMessage | None:
    """The message for what is the item's own to make; None where that is nothing."""
    if not owned or resolved.blob is None:
        return None
    message = run.message
    main = next((wanted for wanted in owned if wanted.track is run.item.modality), None)
    return DecodeMessage(
        job_id=message.job_id,
        model=message.model,
        priority=message.priority,
        deadline=message.deadline,
        enqueued_at=run.context.clock(),
        attempt=message.attempt,
        trace=message.trace,
        item=run.item,
        digest=resolved.found.digest,
        blob=resolved.blob,
        main=main,
        audio=next((wanted for wanted in owned if wanted is not main), None),
        timings=run.timings(),
    )


def _dropped(run: FetchRun, reason: Count) -> _Fetched:
    """Leave the flights of an item that is not fetched, as far as its digest is known without a download.

    A flight may have been passed on to this item; its waiters must not wait for the end of the lease.
    """
    leave_download(run)
    digest = last_digest(run.item, run.context.store.sources)
    with suppress(CallerFault, EncoderNotReady):
        if digest is not None:
            run.withdraw(look_up_of_all(run)(digest).missing)
    return _Fetched(tally={reason: 1})


def _free(run: FetchRun, blob: BlobRef | None) -> None:
    """Remove downloaded bytes that nothing needs any more; uploads stay."""
    if blob is not None:
        run.context.store.blobs.free(blob)


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
