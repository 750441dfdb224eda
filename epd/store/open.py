"""The store as one object, and how the settings open it: records on a server, files in folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epd.settings import Settings, require_folder
from epd.store.admissions import AdmissionBound, Admissions
from epd.store.cache.async_cache import AsyncCache
from epd.store.cache.embeddings import Embeddings
from epd.store.cache.index import EmbeddingIndex, TierLimits
from epd.store.connection import Connection
from epd.store.files.blobs import Blobs
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.files.tiers import TierFiles
from epd.store.flights import FetchSteps, Flights
from epd.store.handoffs import AsyncHandoffs, Handoffs
from epd.store.jobs import AsyncJobs, Jobs
from epd.store.loop_connection import AsyncConnection, LoopConnection, ThreadConnection
from epd.store.notices import Notices
from epd.store.records import Cards, Heartbeats, Segments, Sources, Uploads
from epd.store.values import InlineHolder

#: Seconds. A job is written shortly after its inline bytes, and workers end it shortly after its deadline.
GRACE = 60.0

#: Digests of inline bytes that one round looks at.
_MAX_DIGESTS = 4096


@dataclass(frozen=True, slots=True)
class Store:
    """All parts of the store, over one server and one set of folders.

    Every call has a time limit, and raises ``StoreUnavailable`` when the server refuses it or does not answer
    in time. Calls are synchronous, except those of the ``async_`` parts, which are for an event loop.
    """

    embeddings: Embeddings
    flights: Flights
    fetch_steps: FetchSteps
    jobs: Jobs
    admissions: Admissions
    handoffs: Handoffs
    blobs: Blobs
    cards: Cards
    sources: Sources
    segments: Segments
    heartbeats: Heartbeats
    notices: Notices
    async_cache: AsyncCache
    async_jobs: AsyncJobs
    async_handoffs: AsyncHandoffs
    disconnect: Callable[[], None]

    def close(self) -> None:
        """End subscriptions and close connections. A later call connects again."""
        self.notices.close()
        self.disconnect()


def open_store(settings: Settings) -> Store:
    """Open the store on ``store_url``. One per process is enough; use it from any thread.

    It connects with its first call, so that a server that does not answer is noticed only then.

    Raises:
        SettingsError: ``store_url`` is not the URL of a Redis server, or ``l2_dir`` is not writable.
    """
    connection = Connection(settings.store_url, timeout=settings.store_timeout)
    loop = _loop_connection(settings, connection)
    files, index = _tier_files(settings), EmbeddingIndex(connection, _limits(settings))
    uploads = Uploads(connection, ttl=settings.media_ttl)
    bound = AdmissionBound(settings.max_queue_items, settings.max_queue_bytes)
    return Store(
        embeddings=Embeddings(index, files),
        flights=Flights(
            connection,
            index,
            files.l1,
            lease=settings.flight_lease,
            job_ttl=settings.job_ttl,
            embedding_ttl=settings.embedding_ttl,
        ),
        fetch_steps=FetchSteps(
            connection, lease=settings.flight_lease, memo_ttl=settings.embedding_ttl
        ),
        jobs=Jobs(connection, job_ttl=settings.job_ttl),
        admissions=Admissions(connection, bound),
        handoffs=Handoffs(connection, ttl=settings.handoff_ttl),
        blobs=Blobs(settings.blob_dir, uploads, limit=settings.blob_bytes, media_ttl=settings.media_ttl),
        cards=Cards(connection),
        sources=Sources(connection, ttl=settings.embedding_ttl, audio_ttl=settings.job_deadline),
        segments=Segments(connection, most=settings.segments, ttl=settings.embedding_ttl),
        heartbeats=Heartbeats(connection, ttl=settings.heartbeat_ttl),
        notices=Notices(connection, loop),
        async_cache=AsyncCache(loop, files, job_ttl=settings.job_ttl),
        async_jobs=AsyncJobs(loop, bound, job_ttl=settings.job_ttl),
        async_handoffs=AsyncHandoffs(loop),
        disconnect=connection.close,
    )


def _tier_files(settings: Settings) -> TierFiles:
    l1 = EmbeddingFolder(settings.embedding_dir)
    if settings.l2_dir is None:
        return TierFiles(l1)
    require_folder(settings.l2_dir, "EPD_L2_DIR")
    return TierFiles(l1, EmbeddingFolder(settings.l2_dir, device=settings.l2_dir.stat().st_dev))


def _limits(settings: Settings) -> TierLimits:
    return TierLimits(settings.embedding_bytes, None if settings.l2_dir is None else settings.l2_bytes)


def _loop_connection(settings: Settings, connection: Connection) -> AsyncConnection:
    """The connection that all calls on an event loop share. Closing ``async_cache`` closes it."""
    if not LoopConnection.supports(settings.store_url):
        return ThreadConnection(connection)
    return LoopConnection(settings.store_url, timeout=settings.store_timeout)


def release_inline(store: Store, now: float) -> int:
    """Delete inline bytes that no unfinished job holds.

    Args:
        store: The store and its blob folder.
        now: Unix seconds.

    Returns:
        How many files were deleted.

    Raises:
        StoreUnavailable: the server does not answer, so nothing was deleted.
    """
    holders = store.blobs.inline_holders(_MAX_DIGESTS)
    jobs = sorted({holder.job_id for holder in holders if holder.job_id})
    open_parts = dict(zip(jobs, store.jobs.open_parts(jobs), strict=True))
    return store.blobs.drop_inline(
        [holder for holder in holders if _is_over(holder, open_parts.get(holder.job_id), now)]
    )


def _is_over(holder: InlineHolder, open_parts: int | None, now: float) -> bool:
    """Whether the job of a holder is final, past its end, or was never written and will not be."""
    if not holder.job_id or now > holder.until + GRACE:
        return True
    return now > holder.since + GRACE if open_parts is None else open_parts == 0
