"""Getting an item's bytes, or only its digest where the embeddings of that digest are there already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from epd.contracts.errors import NotFound
from epd.contracts.media import NOMINAL_BYTES, BlobRef, Item
from epd.identity import source_key
from epd.lookup import Found
from epd.store.base import BlobKind, SourceMemo
from tasks.flow.context import Context
from workers.download import Downloaded, Validators, download
from workers.limits import fetch_limits

logger = logging.getLogger(__name__)

#: What a digest needs and what of it is cached.
LookUp = Callable[[str], Found]


@dataclass(frozen=True, slots=True)
class Resolved:
    """An item whose digest is known. ``blob`` holds its bytes; None where no byte was needed."""

    found: Found
    blob: BlobRef | None


def known_digest(context: Context, item: Item) -> str | None:
    """The digest that an item had when it was last looked at, without asking its server."""
    if item.source.url is None:
        return item.source.media_id
    memo = context.store.sources.get(source_key(item.source.url))
    return None if memo is None else memo.digest


def resolve(context: Context, item: Item, look_up: LookUp) -> Resolved:
    """Find an item's digest, downloading no more than is needed to serve it.

    Raises:
        NotFound: the upload is unknown or over its time.
        CallerFault, SourceFault, BlobSpaceFull: as ``workers.download.download``.
    """
    media_id = item.source.media_id
    if media_id is None:
        return _resolve_url(context, item, item.source.url or "", look_up)
    blob = context.store.blobs.media(media_id)
    if blob is None:
        raise NotFound(f"no upload {media_id}: it was never made or is over its time")
    return Resolved(look_up(media_id), blob)


def _resolve_url(context: Context, item: Item, url: str, look_up: LookUp) -> Resolved:
    memo = context.store.sources.get(source_key(url))
    known = look_up(memo.digest) if memo is not None else None
    if memo is None or known is None or not known.complete:
        downloaded, blob = _download(context, item, url, memo)
        return Resolved(look_up(downloaded.digest), blob)
    if context.clock() - memo.fetched_at < context.settings.url_ttl:
        return Resolved(known, None)
    return _revalidate(context, item, url, memo, known, look_up)


def _revalidate(
    context: Context, item: Item, url: str, memo: SourceMemo, known: Found, look_up: LookUp
) -> Resolved:
    """Ask the server whether the content is still what the memo says; a 304 costs no body."""
    validators = Validators(etag=memo.etag, last_modified=memo.last_modified)
    downloaded, blob = _download(context, item, url, memo, validators)
    if not downloaded.not_modified:
        return Resolved(look_up(downloaded.digest), blob)
    fresh = memo.model_copy(update={"fetched_at": context.clock()})
    context.store.sources.put(source_key(url), fresh)
    return Resolved(known, None)


def _download(
    context: Context, item: Item, url: str, memo: SourceMemo | None, validators: Validators | None = None
) -> tuple[Downloaded, BlobRef | None]:
    """Download into a new source blob and remember the URL; no blob is kept of a 304.

    A guess is held before the URL is asked for; once the server has told the length, that is held, before
    the first byte is read.
    """
    started = context.clock()
    reserve = context.reservation(NOMINAL_BYTES[item.modality] if memo is None else memo.nbytes)
    with context.store.blobs.create(BlobKind.SOURCE, reserve) as (name, file):
        limits = replace(fetch_limits(context.settings, item.modality), hold=context.hold_for(name))
        downloaded = download(url, into=file, limits=limits, validators=validators)
    blob = BlobRef(name=name, nbytes=downloaded.nbytes)
    if downloaded.not_modified:
        context.store.blobs.free(blob)
        return downloaded, None
    found = SourceMemo(
        digest=downloaded.digest,
        etag=downloaded.etag,
        last_modified=downloaded.last_modified,
        fetched_at=started,
        nbytes=downloaded.nbytes,
    )
    context.store.sources.put(source_key(url), found)
    return downloaded, blob
