"""What the REST API answers, as typed values. The API builds them and the client parses them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import EncoderCard, Metadata
from epd.contracts.job import ErrorInfo, SegmentUse, State
from epd.contracts.media import Modality
from epd.contracts.wire import Wire


class Tier(StrEnum):
    """Where embedding files lie: L1 in memory, L2 on a disk or a shared file system."""

    L1 = "l1"
    L2 = "l2"


class TierStats(Wire):
    """Files of one tier, their bytes, and the limit of these."""

    entries: int
    nbytes: int
    limit: int


class CacheTotals(Wire):
    """What happened to the cache since the store was made, over the whole fleet.

    ``hits``: wanted embeddings that were found, by the tier they were read from. ``misses``: parts that had
    to be made, or waited for another's making. ``evicted``: files taken out of a tier for its limit; one
    that leaves L1 after its demotion lives on in L2. ``dropped``: those of them that no tier has any more:
    their embeddings have to be made again. ``failed_moves``: copies given up, as on a full disk.
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
        """Hits over hits and misses; None before there was any."""
        hits = self.hits_l1 + self.hits_l2
        return hits / (hits + self.misses) if hits + self.misses else None


class CachedAnswer(Wire):
    """An entry of the cache. ``weights_digest`` is its model revision; ``used_at`` is Unix seconds.

    ``shape`` is [tokens, hidden], ``nbytes`` the size of the tensor. ``pinned``: it is being read.
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
    """Some entries, in no order. ``cursor`` asks for the next ones; None after the last.

    A page may be short or empty and not be the last: filters are applied to what is looked at. ``note`` tells
    when the encoder that was asked for is not configured: what it made may be here all the same.
    """

    embeddings: tuple[CachedAnswer, ...]
    cursor: str | None = None
    note: str | None = None


class RemovedAnswer(Wire):
    """How many entries one call removed. ``cursor`` goes on from there; None when all were looked at.

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
    """What an item and a track have in common. ``timings`` are seconds per stage.

    ``segments``: how much of it an earlier item had, for the request whose encode made the embedding.
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
    """A job as it stands."""

    job_id: str
    model: str
    state: State
    items: tuple[ItemAnswer, ...]
    usage: Usage = Usage()


class EventAnswer(Wire):
    """One server-sent event: an item's change of state."""

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

    ``memory_bytes`` is what its weights, tables and static buffers occupy in each worker that has loaded it,
    measured there; None while no such worker lives. ``graphs`` are its captured forwards, which take
    ``graph_bytes`` beside that; None where workers run it eagerly.
    """

    name: str
    family: str
    ready: bool
    card: EncoderCard | None = None
    memory_bytes: int | None = None
    graphs: int | None = None
    graph_bytes: int | None = None


class ModelAnswer(Wire):
    """A model: the encoder of each media type, by name."""

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

    ``memory_bytes`` is what a GPU worker holds on its device, measured: weights, graphs and staging.
    ``graph_bytes`` of that are captured forwards; None where it runs all eagerly. ``staging_bytes`` are
    pinned host memory, beside that.
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
    """A queue: messages that wait, and messages that a worker holds and has not acked."""

    name: str
    waiting: int
    unacked: int


class StatusAnswer(Wire):
    """Workers, queues and the embedding cache; sizes in bytes.

    ``cache_*`` are the files of the first tier, in memory; ``l2`` those of the second where there is one.
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
