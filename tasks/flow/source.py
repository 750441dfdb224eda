"""Getting an item's bytes, or only its digest where nothing has to be made of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from epd.contracts.errors import NotFound
from epd.contracts.media import NOMINAL_BYTES, BlobRef, Item
from epd.contracts.messages import FetchMessage
from epd.identity import source_key
from epd.lookup import Found, is_fresh
from epd.store.values import BlobKind, SourceMemo
from tasks.flow.context import Context
from tasks.flow.settling import LookUp, needs_no_bytes
from workers.download import Downloaded, Validators, download
from workers.limits import fetch_limits

logger = logging.getLogger(__name__)

#: Seconds by which a download may be older than a request that shares it, as long as what it was for is still
#: in the making: who misses a key while it is made joins its flight, and that has one download. The bound is
#: for content that changes while a long queue is worked off.
SAME_FLIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """An item whose digest is known. ``blob`` holds its bytes; None where no byte was needed.

    ``asked``: its server was asked, and answered with a body or with 304.
    """

    found: Found
    blob: BlobRef | None
    asked: bool = False


def resolve(context: Context, message: FetchMessage, item: Item, look_up: LookUp) -> Resolved:
    """Find an item's digest, downloading no more than is needed to serve it.

    Raises:
        NotFound: the upload is unknown or over its time.
        CallerFault, SourceFault, BlobSpaceFull: as ``workers.download.download``.
    """
    media_id = item.source.media_id
    if media_id is None:
        return _resolve_url(context, message, item, look_up)
    blob = context.store.blobs.media(media_id)
    if blob is None:
        raise NotFound(f"no upload {media_id}: it was never made or is over its time")
    return Resolved(look_up(media_id), blob)


def download_anew(context: Context, item: Item, look_up: LookUp) -> Resolved:
    """The bytes of an item's URL as they are now, whatever is known of it."""
    memo = context.store.sources.get(source_key(item.source.url or ""))
    downloaded, blob = _download(context, item, memo)
    return Resolved(look_up(downloaded.digest), blob, asked=True)


def _resolve_url(context: Context, message: FetchMessage, item: Item, look_up: LookUp) -> Resolved:
    memo = context.store.sources.get(source_key(item.source.url or ""))
    known = look_up(memo.digest) if memo is not None else None
    if memo is None or known is None or not needs_no_bytes(context, known):
        return download_anew(context, item, look_up)
    if _is_current(context, message, memo, known):
        return Resolved(known, None)
    return _revalidate(context, item, memo, known, look_up)


def _is_current(context: Context, message: FetchMessage, memo: SourceMemo, known: Found) -> bool:
    """Whether the URL need not be asked for: it was since the request came, or the memo is fresh."""
    grace = 0.0 if known.complete else SAME_FLIGHT
    if memo.fetched_at >= message.enqueued_at - grace:
        return True
    return is_fresh(memo, url_ttl=context.settings.url_ttl, now=context.clock())


def _revalidate(context: Context, item: Item, memo: SourceMemo, known: Found, look_up: LookUp) -> Resolved:
    """Ask the server whether the content is still what the memo says; a 304 costs no body.

    A server that says 304 is believed, also where its tag is a weak one or its content is another.
    """
    validators = Validators(answered_by=memo.answered_by, etag=memo.etag, last_modified=memo.last_modified)
    downloaded, blob = _download(context, item, memo, validators)
    if downloaded.not_modified:
        return Resolved(known, None, asked=True)
    return Resolved(look_up(downloaded.digest), blob, asked=True)


def _download(
    context: Context, item: Item, memo: SourceMemo | None, validators: Validators | None = None
) -> tuple[Downloaded, BlobRef | None]:
    """Download into a new source blob and remember the URL; no blob is kept of a 304.

    A guess is held before the URL is asked for; once the server has told the length, that is held, before
    the first byte is read.
    """
    started, url = context.clock(), item.source.url or ""
    reserve = context.reservation(NOMINAL_BYTES[item.modality] if memo is None else memo.nbytes)
    with context.store.blobs.create(BlobKind.SOURCE, reserve) as (name, file):
        limits = replace(fetch_limits(context.settings, item.modality), hold=context.hold_for(name))
        downloaded = download(url, into=file, limits=limits, validators=validators)
    blob = BlobRef(name=name, nbytes=downloaded.nbytes)
    if downloaded.not_modified and memo is not None:
        context.store.blobs.free(blob)
        context.store.sources.put(source_key(url), _confirmed(memo, downloaded, started))
        return downloaded, None
    context.store.sources.put(source_key(url), _memo(downloaded, started))
    return downloaded, blob


def _memo(downloaded: Downloaded, started: float) -> SourceMemo:
    return SourceMemo(
        digest=downloaded.digest,
        etag=downloaded.reuse.etag,
        last_modified=downloaded.reuse.last_modified,
        answered_by=downloaded.answered_by,
        max_age=downloaded.reuse.max_age,
        fetched_at=started,
        nbytes=downloaded.nbytes,
    )


def _confirmed(memo: SourceMemo, downloaded: Downloaded, started: float) -> SourceMemo:
    """The memo after a 304: what that says anew of the content's life holds from now on."""
    age = downloaded.reuse.max_age
    return memo.model_copy(update={"fetched_at": started, "max_age": memo.max_age if age is None else age})
