"""The bytes that came inside a request, in the blob directory for as long as its job needs them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from epd.contracts.errors import BlobSpaceFull
from epd.contracts.job import JobRecord
from epd.contracts.media import Item
from epd.store.base import Store
from epd.store.inline_release import release_inline
from epd.store.values import InlineHolder


@contextmanager
def inline_held(
    store: Store, record: JobRecord, todo: Sequence[Item], inline: Mapping[str, bytes]
) -> Iterator[None]:
    """Have a job hold its inline bytes while the block starts it, and from then on until it is final.

    When the block raises, nothing is held. A job that names the inline bytes of another by their digest
    holds them too.

    Args:
        store: The store.
        record: The job.
        todo: Its items that are not answered by the cache.
        inline: Bytes by media id.

    Raises:
        BlobSpaceFull: there is no room, also not after what finished jobs left was freed.
        StoreUnavailable: the store does not answer.
    """
    needed = sorted({item.source.media_id for item in todo if item.source.media_id is not None})
    try:
        for media_id in needed:
            _hold(store, record, media_id, inline.get(media_id))
        yield
    except BaseException:
        store.blobs.drop_inline([InlineHolder(media_id, record.job_id) for media_id in needed])
        raise


def _hold(store: Store, record: JobRecord, media_id: str, data: bytes | None) -> None:
    if data is None:
        store.blobs.join_inline(media_id, record.job_id, record.deadline)
        return
    try:
        store.blobs.keep_inline(media_id, record.job_id, data, record.deadline)
    except BlobSpaceFull:
        if not release_inline(store, time.time()):
            raise
        store.blobs.keep_inline(media_id, record.job_id, data, record.deadline)
