"""The ``fetch`` stage: digest of each item, cached parts, claims, and decode messages for the rest."""

from __future__ import annotations

import logging
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
from tasks.flow.context import Context, Tally, sum_tallies
from tasks.flow.flights import give_up_fetch, join_or_lead, leave_download, serve_waiters
from tasks.flow.item import FetchRun, ItemRun, pause_of
from tasks.flow.settle import look_up_of, look_up_of_all, settle
from tasks.flow.source import ItemSource, Resolved

logger = logging.getLogger(__name__)

#: Temporary errors: the item is fetched again a little later, until its deadline.
_TEMPORARY = (EncoderNotReady, BlobSpaceFull, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The outcome of an item: a decode message, the reason to postpone it, or nothing more to do."""

    decode: DecodeMessage | None = None
    postponed: EpdError | None = None
    tally: Tally = field(default_factory=dict)


def fetch_chunk(context: Context, message: FetchMessage, executor: Executor) -> Tally:
    """Fetch the items of a chunk concurrently and publish their decode messages in one batch.

    Returns:
        What to count.

    Raises:
        StoreUnavailable: the broker did not take the messages; the whole chunk may be run again.
    """
    results = list(zip(message.items, _fetch_all(context, message, executor), strict=True))
    decodes = [result.decode for _, result in results if result.decode is not None]
    try:
        context.publisher.decode(decodes)
        later = [(item, result.postponed) for item, result in results if result.postponed is not None]
        if later:
            _postpone(context, message, later)
    except StoreUnavailable:
        for decode in decodes:
            context.store.blobs.free(decode.blob)
        raise
    return sum_tallies(result.tally for _, result in results)


def _fetch_all(context: Context, message: FetchMessage, executor: Executor) -> Iterable[_Fetched]:
    """The items' outcomes in order. The calling thread fetches the last item."""
    *others, last = message.items
    running = [executor.submit(_fetch_item, context, message, item) for item in others]
    own = _fetch_item(context, message, last)
    return [*(future.result() for future in running), own]


def _postpone(context: Context, message: FetchMessage, later: Sequence[tuple[Item, EpdError]]) -> None:
    """Fetch items again in one later chunk; where the deadline comes first, they fail with their reason."""
    pause = pause_of(message, now=context.clock())
    if pause is not None:
        logger.info("job %s: %d items postponed: %s", message.job_id, len(later), later[0][1])
        chunk = message.model_copy(update={"items": tuple(item for item, _ in later)})
        context.publisher.fetch([chunk], countdown=pause)
        return
    for item, reason in later:
        give_up_fetch(ItemRun(context, message, item), reason)


def _fetch_item(context: Context, message: FetchMessage, item: Item) -> _Fetched:
    """Fetch one item. Errors are recorded in its parts and not raised.

    While the store is unavailable no part can be finished, so the item is postponed.
    """
    run = FetchRun(context, message, item)
    try:
        return _fetch(run)
    except _TEMPORARY as error:
        return _postponed(error)
    except EpdError as error:
        return _failed(run, error)
    except Exception:
        logger.exception("job %s item %s: fetch failed", message.job_id, item.index)
        return _failed(run, Internal("fetching failed; the worker's log says why"))


def _postponed(reason: EpdError) -> _Fetched:
    return _Fetched(postponed=reason, tally={Count.RETRIED_ITEMS: 1})


def _failed(run: FetchRun, error: EpdError) -> _Fetched:
    try:
        give_up_fetch(run, error)
    except StoreUnavailable as unavailable:
        return _postponed(unavailable)
    return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FETCH_FAILURES: 1})


def _fetch(run: FetchRun) -> _Fetched:
    if run.expired:
        run.expire()
        return _dropped(run, Count.FETCH_EXPIRED)
    open_parts = run.open_parts(Stage.FETCH)
    if not open_parts:
        return _dropped(run, Count.FETCH_DROPPED)
    look_up = look_up_of(run, open_parts)
    # An item that is fetched for its audio alone has no open part that could wait for a download.
    shared = run.item.source.url is not None and run.main_part in open_parts
    if shared and not join_or_lead(run):
        return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FLIGHTS_JOINED: 1})
    source = ItemSource(run, look_up, leads=shared)
    return _claim_and_pass_on(source, source.resolve())


def _claim_and_pass_on(source: ItemSource, resolved: Resolved) -> _Fetched:
    """Claim what is missing, and make the decode message for what this item has to make.

    The waiters of the download are served here, except where only decoding can tell which parts there are:
    then ``decode`` serves them.
    """
    run, found = source.run, resolved.found
    try:
        owned = settle(run, found).owned
        if owned and resolved.blob is None:
            return _claim_and_pass_on(source, _download_after_all(source, resolved))
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
    """Download the item after all: the flight that it meant to join has ended, so this item makes it."""
    again = source.download()
    if again.found.digest != resolved.found.digest:
        source.run.withdraw(resolved.found.missing)
    return again


def _decode_message(run: FetchRun, resolved: Resolved, owned: Sequence[Wanted]) -> DecodeMessage | None:
    """The message for what this item has to make; None if that is nothing."""
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

    This item may have become the leader of a flight; its waiters must not wait until the lease ends.
    """
    leave_download(run)
    digest = last_digest(run.item, run.context.store.sources)
    with suppress(CallerFault, EncoderNotReady):
        if digest is not None:
            run.withdraw(look_up_of_all(run)(digest).missing)
    return _Fetched(tally={reason: 1})


def _free(run: FetchRun, blob: BlobRef | None) -> None:
    """Remove downloaded bytes that are no longer needed; uploads stay."""
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
