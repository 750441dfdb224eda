"""Opens the store: records on the server of the settings, files in the folders of the settings."""

from __future__ import annotations

from epd.settings import Settings, require_folder
from epd.store.cache.embeddings import Embeddings
from epd.store.cache.index import EmbeddingIndex
from epd.store.cache.recent import RecentEntries
from epd.store.connection import Connection
from epd.store.files.blobs import Blobs, UploadRecords
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.files.tiers import TierFiles, TierLimits
from epd.store.flights import Flights
from epd.store.handoffs import HandoffLooks, Handoffs
from epd.store.jobs import Admissions, Jobs, Notices
from epd.store.loop_connection import LoopConnection, ThreadConnection
from epd.store.records import Cards, Heartbeats, Segments, Sources, Uploads
from epd.store.store import Store
from epd.store.values import AdmissionBound


def open_store(settings: Settings) -> Store:
    """The store on ``store_url``. It connects with its first call; use one a process, from any thread.

    Raises:
        SettingsError: ``store_url`` is not a URL of a Redis server, or ``l2_dir`` cannot be written.
        StoreUnavailable: later, from any call, when the server does not answer within ``store_timeout``.
    """
    connection = Connection(settings.store_url, timeout=settings.store_timeout)
    files, index = _files(settings), EmbeddingIndex(connection, _limits(settings))
    flights = Flights(
        connection,
        index,
        files.l1,
        lease=settings.flight_lease,
        job_ttl=settings.job_ttl,
        embedding_ttl=settings.embedding_ttl,
    )
    loop = _loop_connection(settings, connection)
    return Store(
        embeddings=Embeddings(index, files),
        flights=flights,
        jobs=Jobs(connection, job_ttl=settings.job_ttl),
        admissions=Admissions(connection, _bound(settings)),
        handoffs=Handoffs(connection, ttl=settings.handoff_ttl),
        blobs=_blobs(settings, Uploads(connection, ttl=settings.media_ttl)),
        cards=Cards(connection),
        sources=Sources(connection, ttl=settings.embedding_ttl, audio_ttl=settings.job_deadline),
        segments=Segments(connection, most=settings.segments, ttl=settings.embedding_ttl),
        heartbeats=Heartbeats(connection, ttl=settings.heartbeat_ttl),
        notices=Notices(connection),
        disconnect=connection.close,
        recent=RecentEntries(loop, files, job_ttl=settings.job_ttl),
        handoff_looks=HandoffLooks(loop),
    )


def _files(settings: Settings) -> TierFiles:
    first = EmbeddingFolder(settings.embedding_dir)
    if settings.l2_dir is None:
        return TierFiles(first)
    require_folder(settings.l2_dir, "EPD_L2_DIR")
    return TierFiles(first, EmbeddingFolder(settings.l2_dir, device=settings.l2_dir.stat().st_dev))


def _limits(settings: Settings) -> TierLimits:
    return TierLimits(settings.embedding_bytes, None if settings.l2_dir is None else settings.l2_bytes)


def _loop_connection(settings: Settings, connection: Connection) -> LoopConnection | ThreadConnection:
    """The connection of the event loop, for all who ask on it; closing ``recent`` closes it."""
    if not LoopConnection.serves(settings.store_url):
        return ThreadConnection(connection)
    return LoopConnection(settings.store_url, timeout=settings.store_timeout)


def _bound(settings: Settings) -> AdmissionBound:
    return AdmissionBound(settings.max_queue_items, settings.max_queue_bytes)


def _blobs(settings: Settings, uploads: UploadRecords) -> Blobs:
    return Blobs(settings.blob_dir, uploads, limit=settings.blob_bytes, media_ttl=settings.media_ttl)
