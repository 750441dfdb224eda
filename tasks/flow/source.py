"""Getting an item's bytes, or only its digest where no embedding has to be made."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from epd.contracts.errors import NotFound
from epd.contracts.job import PartId
from epd.contracts.media import NOMINAL_BYTES, BlobRef, Modality
from epd.identity import source_key
from epd.lookup import Found, is_fresh
from epd.store.flights import Arrived, Download
from epd.store.values import BlobKind, SourceMemo
from tasks.flow.flights import leading
from tasks.flow.item import FetchRun
from tasks.flow.settle import ItemLookUp, needs_no_bytes
from workers.fetch.download import Downloaded, Validators, download
from workers.limits import fetch_limits

#: Seconds by which a download may be older than a request that shares it, while its embedding is still being
#: made: an item that misses a key joins the key's flight, and a flight has one download. The bound matters
#: for content that changes while a long queue is processed.
SAME_FLIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """An item whose digest is known. ``blob`` holds its bytes; None if they are not needed.

    ``asked`` says whether the server was asked; it answered with a body or with 304. ``arrived`` is set where
    the item's only embedding was claimed with the download.
    """

    found: Found
    blob: BlobRef | None
    asked: bool = False
    arrived: Arrived | None = None


@dataclass(frozen=True, slots=True)
class ItemSource:
    """Where an item's bytes come from.

    ``shared`` is its download where others may wait for it; then this item leads. ``memo`` is what was known
    of the URL when the fetch began.
    """

    run: FetchRun
    look_up: ItemLookUp
    open_parts: frozenset[PartId]
    shared: Download | None
    memo: SourceMemo | None

    def resolve(self) -> Resolved:
        """Find the item's digest, downloading no more than is needed to serve it.

        Raises:
            NotFound: the upload is unknown or has expired.
            CallerFault, SourceFault, BlobSpaceFull: as ``workers.fetch.download.download``.
        """
        with self._leading():
            return self._resolve_upload() if self.run.item.source.url is None else self._resolve_url()

    def download(self) -> Resolved:
        """Download the item's URL whatever is known of it; raises as ``resolve``."""
        memo = self.run.context.store.sources.get(source_key(self._url))
        with self._leading():
            return self._download_body(memo)

    def _leading(self) -> AbstractContextManager[None]:
        return nullcontext() if self.shared is None else leading(self.run)

    def _found(self, digest: str) -> Found:
        return self.look_up.found_open(digest, self.open_parts)

    def _resolve_upload(self) -> Resolved:
        media_id = self.run.item.source.media_id or ""
        blob = self.run.context.store.blobs.media(media_id)
        if blob is None:
            raise NotFound(f"no upload {media_id}: it was never made or has expired")
        return Resolved(self._found(media_id), blob)

    def _resolve_url(self) -> Resolved:
        memo = self.memo
        known = self._found(memo.digest) if memo is not None else None
        if memo is None or known is None or not needs_no_bytes(self.run.context, known):
            return self._download_body(memo)
        if self._is_current(memo, known):
            return Resolved(known, None)
        return self._revalidate(memo, known)

    @property
    def _url(self) -> str:
        return self.run.item.source.url or ""

    def _is_current(self, memo: SourceMemo, known: Found) -> bool:
        """Whether the memo holds without a request: it is newer than the item's request, or still fresh."""
        grace = 0.0 if known.complete else SAME_FLIGHT
        if memo.fetched_at >= self.run.message.enqueued_at - grace:
            return True
        context = self.run.context
        return is_fresh(memo, url_ttl=context.settings.url_ttl, now=context.clock())

    def _revalidate(self, memo: SourceMemo, known: Found) -> Resolved:
        """Ask the server whether the memo still holds; an answer of 304 has no body.

        A 304 is believed, even with a weak tag or if the content is in fact another.
        """
        validators = Validators(
            answered_by=memo.answered_by, etag=memo.etag, last_modified=memo.last_modified
        )
        downloaded, blob, started = self._download(memo, validators)
        if not downloaded.not_modified:
            return self._arrive(_memo_of(downloaded, started), blob)
        self.run.context.store.blobs.free(blob)
        self._note(_confirmed(memo, downloaded, started))
        return Resolved(known, None, asked=True)

    def _download_body(self, memo: SourceMemo | None) -> Resolved:
        downloaded, blob, started = self._download(memo)
        return self._arrive(_memo_of(downloaded, started), blob)

    def _download(
        self, memo: SourceMemo | None, validators: Validators | None = None
    ) -> tuple[Downloaded, BlobRef, float]:
        """Download into a new source blob, which is empty after a 304. Returns also when the request began.

        Space is reserved for an estimated size before the request, and for the stated length before the
        first byte is read.
        """
        context, item = self.run.context, self.run.item
        started = context.clock()
        reserve = context.reservation(NOMINAL_BYTES[item.modality] if memo is None else memo.nbytes)
        with context.store.blobs.create(BlobKind.SOURCE, reserve) as (name, file):
            limits = replace(fetch_limits(context.settings, item.modality), hold=context.hold_for(name))
            downloaded = download(self._url, into=file, limits=limits, validators=validators)
        return downloaded, BlobRef(name=name, nbytes=downloaded.nbytes), started

    def _arrive(self, memo: SourceMemo, blob: BlobRef) -> Resolved:
        """Note the download. Where the item has one part, its embedding is claimed in the same round trip.

        The bytes are removed if that fails.
        """
        try:
            if self.shared is None or self.run.item.modality is Modality.VIDEO:
                self._note(memo)
                return Resolved(self._found(memo.digest), blob, asked=True)
            wanted = self.look_up.needs(memo.digest).main
            arrived = self.run.context.store.fetch_steps.arrive(
                self.shared, memo, wanted.key, self.shared.waiter
            )
            found = Found(self.run.item, memo.digest, {}, main=wanted, audio=None)
            return Resolved(found, blob, asked=True, arrived=arrived)
        except BaseException:
            self.run.context.store.blobs.free(blob)
            raise

    def _note(self, memo: SourceMemo) -> None:
        self.run.context.store.sources.put(source_key(self._url), memo)


def _memo_of(downloaded: Downloaded, started: float) -> SourceMemo:
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
    """The memo after a 304, whose headers may give the content a new lifetime."""
    age = downloaded.reuse.max_age
    return memo.model_copy(update={"fetched_at": started, "max_age": memo.max_age if age is None else age})
