"""The ``fetch`` stage: digest of each item, cached parts, claims, and a decode message for what is missing.

The items of a chunk begin together, in one round trip. From then on each goes its own way, so that a slow URL
delays none of its siblings.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from epd.contracts.errors import (
    BlobSpaceFull,
    CallerFault,
    EncoderNotReady,
    EpdError,
    Internal,
    StoreUnavailable,
)
from epd.contracts.media import BlobRef, Item
from epd.contracts.messages import DecodeMessage, FetchMessage, Wanted
from epd.lookup import last_digest
from epd.store.flights import Download, Started, Starting
from epd.store.values import Claim
from epd.telemetry.counters import Count
from tasks.flow.context import Context, Tally, sum_tallies
from tasks.flow.fair_executor import Turn
from tasks.flow.flights import download_of, give_up_fetch, leave_download, serve_waiters
from tasks.flow.item import FetchRun, ItemRun, pause_of
from tasks.flow.settle import ItemLookUp, Settled, settle
from tasks.flow.source import ItemSource, Resolved
from tasks.flow.work import Work

logger = logging.getLogger(__name__)

#: Temporary errors: the item is fetched again a little later, until its deadline.
_TEMPORARY = (EncoderNotReady, BlobSpaceFull, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The outcome of an item: it is decoded here, or has to be postponed, or nothing more is to be done."""

    decode: DecodeMessage | None = None
    decoding: Future[Tally] | None = None
    postponed: EpdError | None = None
    tally: Tally = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Begin:
    """An item before the first round trip: its look-up, or why there is none, and the download it claims."""

    run: FetchRun
    look_up: ItemLookUp | EpdError
    download: Download | None

    @classmethod
    def of(cls, run: FetchRun) -> _Begin:
        try:
            look_up = ItemLookUp.of(run)
        except EpdError as error:
            return cls(run, error, None)
        return cls(run, look_up, None if run.expired else download_of(run))


def fetch_chunk(context: Context, message: FetchMessage, work: Work) -> Tally:
    """Fetch the items of a chunk. Returns when each of them was passed on, or has ended.

    Returns:
        What to count.

    Raises:
        StoreUnavailable: store or broker do not answer; the whole chunk may be run again.
    """
    items = [_Begin.of(FetchRun(context, message, item)) for item in message.items]
    started = context.store.fetch_steps.start(
        message.job_id, [Starting(item.run.possible_parts, item.download) for item in items]
    )
    claims = zip(items, started, strict=True)
    led = [item.download.key for item, answer in claims if item.download and answer.claim is Claim.OWNED]
    with context.leases.keep(led):
        outcomes = _fetch_all(items, started, work)
        later = [(item, each.postponed) for item, each in outcomes if each.postponed is not None]
        if later:
            _postpone(context, message, later)
    return sum_tallies(each.tally for _, each in outcomes)


def _fetch_all(
    items: Sequence[_Begin], started: Sequence[Started], work: Work
) -> list[tuple[Item, _Fetched]]:
    """The outcomes of all items, once those that are decoded here are decoded."""
    running: list[tuple[Item, Future[_Fetched]]] = []
    uploads = []
    for begin, answer in zip(items, started, strict=True):
        item = begin.run.item
        fetch = partial(_fetch_item, begin, answer, work)
        if item.source.url is None:
            uploads.append((item, fetch))
        else:
            running.append((item, work.downloads.submit(_turn_of(begin.run, item.source.url), fetch)))
    # Here, since uploads need no download and so never wait behind one.
    outcomes = [(item, fetch()) for item, fetch in uploads]
    outcomes += [(item, _result_of(future)) for item, future in running]
    return [(item, _with_decode(work, each)) for item, each in outcomes]


def _turn_of(run: FetchRun, url: str) -> Turn:
    return Turn(run.message.priority, run.message.job_id, urlsplit(url).netloc.lower())


def _result_of(future: Future[_Fetched]) -> _Fetched:
    try:
        return future.result()
    except CancelledError:
        return _postponed(StoreUnavailable("the worker stops"))


def _with_decode(work: Work, fetched: _Fetched) -> _Fetched:
    """The outcome with that of its decode, if it is decoded in this process."""
    if fetched.decoding is None or fetched.decode is None:
        return fetched
    try:
        decoded = fetched.decoding.result()
    except (CancelledError, StoreUnavailable) as error:
        work.context.store.blobs.free(fetched.decode.blob)
        stopped = StoreUnavailable("the worker stops")
        return _postponed(error if isinstance(error, StoreUnavailable) else stopped)
    return _Fetched(tally=sum_tallies([fetched.tally, decoded]))


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


def _fetch_item(begin: _Begin, started: Started, work: Work) -> _Fetched:
    """Fetch one item and pass it on. Errors are recorded in its parts and not raised.

    While the store is unavailable no part can be finished, so the item is postponed.
    """
    run = begin.run
    try:
        return _fetch(begin, started, work)
    except _TEMPORARY as error:
        return _postponed(error)
    except EpdError as error:
        return _failed(run, error)
    except Exception:
        logger.exception("job %s item %s: fetch failed", run.message.job_id, run.item.index)
        return _failed(run, Internal("fetching failed; the worker's log says why"))


def _postponed(reason: EpdError) -> _Fetched:
    return _Fetched(postponed=reason, tally={Count.RETRIED_ITEMS: 1})


def _failed(run: FetchRun, error: EpdError) -> _Fetched:
    try:
        give_up_fetch(run, error)
    except StoreUnavailable as unavailable:
        return _postponed(unavailable)
    return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FETCH_FAILURES: 1})


def _fetch(begin: _Begin, started: Started, work: Work) -> _Fetched:
    run, look_up, shared = begin.run, begin.look_up, begin.download
    if run.expired:
        run.expire()
        return _dropped(run, Count.FETCH_EXPIRED)
    if not started.open_parts:
        return _dropped(run, Count.FETCH_DROPPED)
    if isinstance(look_up, EpdError):
        raise look_up
    if shared is not None and run.main_part not in started.open_parts:
        # An item that is fetched for its audio alone has no open part that could wait for a download.
        leave_download(run)
        shared = None
    if shared is not None and started.claim is Claim.WAITING:
        return _Fetched(tally={Count.FETCH_ITEMS: 1, Count.FLIGHTS_JOINED: 1})
    source = ItemSource(run, look_up, started.open_parts, shared, started.memo)
    return _claim_and_pass_on(source, source.resolve(), work)


def _claim_and_pass_on(source: ItemSource, resolved: Resolved, work: Work) -> _Fetched:
    """Claim what is missing, and pass on the decode message for what this item has to make.

    The waiters of the download are served here, except where only decoding can tell which parts there are:
    then ``decode`` serves them.
    """
    run, decoding = source.run, None
    try:
        resolved, settled = _settled(source, resolved)
        if settled.owned and resolved.blob is None:
            return _claim_and_pass_on(source, _download_after_all(source, resolved), work)
        decode = _decode_message(run, resolved, settled.owned)
        if source.shared is not None and (decode is None or decode.audio is None):
            taken = None if resolved.arrived is None else resolved.arrived.waiters
            serve_waiters(run, resolved.found.digest, taken)
        if decode is not None:
            decoding = work.pass_on(decode)
    except BaseException:
        _free(run, resolved.blob)
        raise
    if decode is None:
        _free(run, resolved.blob)
    return _Fetched(decode, decoding, tally=_tally(resolved, decode, run.spent()))


def _settled(source: ItemSource, resolved: Resolved) -> tuple[Resolved, Settled]:
    """What this item has to make. An item that was claimed when its bytes arrived is not claimed again."""
    run, arrived = source.run, resolved.arrived
    if arrived is None:
        return resolved, settle(run, resolved.found)
    if arrived.claim is Claim.HIT:
        found = source.look_up.found_open(resolved.found.digest, source.open_parts)
        again = Resolved(found, resolved.blob, asked=True, arrived=arrived)
        return again, settle(run, found)
    if not arrived.is_open:
        run.withdraw(resolved.found.missing)
        return resolved, Settled()
    if arrived.claim is Claim.WAITING:
        return resolved, Settled(joined=1)
    return resolved, Settled(owned=resolved.found.missing)


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
    """Leave the flights that an item that is not fetched may lead, as far as its digest is known."""
    leave_download(run)
    digest = last_digest(run.item, run.context.store.sources)
    with suppress(CallerFault, EncoderNotReady):
        if digest is not None:
            run.withdraw(ItemLookUp.of(run).found(digest).missing)
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
