"""The answers of the REST API as typed values. The API builds them and the client parses them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import EncoderCard, Metadata
from epd.contracts.job import ErrorInfo, SegmentUse, State
from epd.contracts.media import Modality
from epd.contracts.wire import Wire


class Tier(StrEnum):
    """Where embedding files are: L1 in memory, L2 on a disk or a shared file system."""

    L1 = "l1"
    L2 = "l2"


class TierStats(Wire):
    """The number of files in a tier, their size in bytes and the limit of that size."""

    entries: int
    nbytes: int
    limit: int


class CacheTotals(Wire):
    """Totals of the cache over the whole fleet, since the store was created.

    ``hits``: wanted embeddings that were found, by the tier they were read from. ``misses``: parts that had
    to be encoded, or waited for another job to encode them. ``evicted``: files removed from a tier to keep
    its limit; a file that leaves L1 after its demotion stays in L2. ``dropped``: evicted files that are in no
    tier any more; their embeddings have to be encoded again. ``failed_moves``: copies given up, for example
    on a full disk.
    """

    hits_l1: int = 0
    hits_l2: int = 0
    misses: int = 0
    evicted_l1: int = 0
    evicted_l2: int = 0
    dropped: int = 0
    demotions: int = 0
    promotions: int = 0
    failed_moves: int = 0
    corrupt: int = 0
    removed: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Hits divided by hits and misses; None before the first of either."""
        hits = self.hits_l1 + self.hits_l2
        return hits / (hits + self.misses) if hits + self.misses else None


class CachedAnswer(Wire):
    """An entry of the cache. ``weights_digest`` is its model revision; ``used_at`` is Unix seconds.

    ``shape`` is [tokens, hidden], ``nbytes`` the size of the tensor. ``pinned``: a reader holds it.
    """

    key: str
    modality: Modality
    encoder: str
    weights_digest: str | None = None
    shape: tuple[int, int]
    dtype: str
    nbytes: int
    tiers: tuple[Tier, ...]
    used_at: float
    pinned: bool = False


class CachePageAnswer(Wire):
    """One page of entries, in no order. ``cursor`` asks for the next page; it is None on the last one.

    A page may be short or empty without being the last, since filters apply to what was scanned. ``note`` is
    set when the requested encoder is not configured; its embeddings may still be in the cache.
    """

    embeddings: tuple[CachedAnswer, ...]
    cursor: str | None = None
    note: str | None = None


class RemovedAnswer(Wire):
    """How many entries one call removed. ``cursor`` continues from there; None when all were scanned.

    ``note`` is that of ``CachePageAnswer``.
    """

    removed: int
    cursor: str | None = None
    note: str | None = None


class EmbeddingAnswer(Wire):
    """A stored embedding: ``shape`` is [tokens, hidden]; ``url`` is a path on the same server."""

    key: str
    shape: tuple[int, int]
    dtype: str
    nbytes: int
    url: str


class PartAnswer(Wire):
    """The fields that an item and a track have in common. ``timings`` are seconds per stage.

    ``segments`` is set for the request whose encode made the embedding: how many were already cached.
    """

    type: Modality
    state: State
    cached: bool = False
    embedding: EmbeddingAnswer | None = None
    metadata: Metadata | None = None
    error: ErrorInfo | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    segments: SegmentUse | None = None


class ItemAnswer(PartAnswer):
    """One item in the order of the request; ``tracks`` holds a video's audio."""

    index: int
    id: str | None = None
    tracks: tuple[PartAnswer, ...] = ()


class Usage(Wire):
    """Embedding rows by media type; a video's audio track counts as audio."""

    image_tokens: int = 0
    video_tokens: int = 0
    audio_tokens: int = 0
    total_tokens: int = 0


class JobAnswer(Wire):
    """The current state of a job."""

    job_id: str
    model: str
    state: State
    items: tuple[ItemAnswer, ...]
    usage: Usage = Usage()


class EventAnswer(Wire):
    """One server-sent event: a change of an item's state."""

    job_id: str
    index: int
    type: Modality
    state: State
    stage: str | None = None
    job_state: State


class MediaAnswer(Wire):
    """An upload: ``media_id`` is the sha256 hex of its bytes."""

    media_id: str
    nbytes: int


class EncoderAnswer(Wire):
    """An encoder of the config; ``card`` is None until a GPU worker has announced it.

    ``memory_bytes`` is what its weights, tables and static buffers take in each worker that has loaded it,
    as measured there; None while no such worker is alive. ``graphs`` is the number of its captured forwards,
    which take another ``graph_bytes``; None where workers run it eagerly.
    """

    name: str
    family: str
    ready: bool
    card: EncoderCard | None = None
    memory_bytes: int | None = None
    graphs: int | None = None
    graph_bytes: int | None = None


class ModelAnswer(Wire):
    """A model: the name of the encoder of each media type."""

    name: str
    default: bool
    image: str | None = None
    video: str | None = None
    audio: str | None = None


class ModelsAnswer(Wire):
    """All models and encoders of the config."""

    models: tuple[ModelAnswer, ...]
    encoders: tuple[EncoderAnswer, ...]


class WorkerAnswer(Wire):
    """A live worker. ``age`` is seconds since its last heartbeat.

    ``memory_bytes`` is what a GPU worker holds on its device, as measured: weights, graphs and staging.
    Captured forwards take ``graph_bytes`` of it; None where the worker runs eagerly. ``staging_bytes`` is
    pinned host memory, in addition.
    """

    name: str
    kind: str
    host: str
    pid: int
    ready: bool
    age: float
    encoders: tuple[str, ...] = ()
    memory_bytes: int | None = None
    graph_bytes: int | None = None
    staging_bytes: int | None = None
    counters: dict[str, float] = Field(default_factory=dict)


class QueueAnswer(Wire):
    """A queue: the messages that wait, and those that a worker holds without having acked them."""

    name: str
    waiting: int
    unacked: int


class StatusAnswer(Wire):
    """Workers, queues and the embedding cache; sizes in bytes.

    ``cache_*`` is the first tier, in memory; ``l2`` is the second tier, where one is configured.
    """

    workers: tuple[WorkerAnswer, ...]
    queues: tuple[QueueAnswer, ...]
    cache_entries: int
    cache_bytes: int
    cache_limit: int
    l2: TierStats | None = None
    cache_totals: CacheTotals = CacheTotals()
    blob_bytes: int
    blob_limit: int
