"""The values that only the store passes: claims, waiters, memos, heartbeats, sizes and rows of the index."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import Entry
from epd.contracts.job import PartId, Priority, SegmentUse
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.contracts.wire import Wire

#: Processes that follow one job at once; the one that came first is dropped.
MAX_WATCHERS = 32


class Claim(StrEnum):
    """The answer to a claim on an embedding key."""

    HIT = "hit"  #: the embedding is there
    OWNED = "owned"  #: the claimer flies (again, if it did before)
    WAITING = "waiting"  #: another flies; the claimer's part is finished with that flight


@dataclass(frozen=True, slots=True)
class Waiter:
    """A part that waits for a flight. ``message`` is the FetchMessage JSON that restarts the flight."""

    job_id: str
    part: PartId
    message: str

    @classmethod
    def named(cls, name: str, message: str) -> Waiter:
        """The waiter of a ``name``; raises ``ValueError``."""
        job_id, _, part = name.partition("/")
        return cls(job_id, PartId.parse(part), message)

    @property
    def name(self) -> str:
        """``"job/part"``, by which a flight knows it."""
        return f"{self.job_id}/{self.part}"


@dataclass(frozen=True, slots=True)
class Completed:
    """One embedding made: its entry, and the part that made it with its stage times in seconds."""

    entry: Entry
    job_id: str
    part: PartId
    timings: dict[str, float]
    segments: SegmentUse | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Items, and bytes of their media files as far as they are known."""

    items: int
    nbytes: int


#: The part of the bound that bulk jobs may fill together, so that an interactive one always finds room.
BULK_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class AdmissionBound:
    """The most that jobs may hold together; bulk jobs among them no more than their share."""

    items: int
    nbytes: int

    def of(self, priority: Priority) -> Load:
        """The bound of the jobs of one priority; that of interactive ones is the whole."""
        share = BULK_SHARE if priority is Priority.BULK else 1.0
        return Load(max(1, int(self.items * share)), max(1, int(self.nbytes * share)))


class SourceMemo(Wire):
    """What is known of a URL's content, for conditional requests.

    ``fetched_at`` is the start of the last request to its server, in Unix seconds. ``answered_by`` is the
    source key of the URL behind the redirects, to which the validators belong. ``max_age`` is seconds for
    which the server lets it be believed; None where it did not say.
    """

    digest: str
    etag: str | None = None
    last_modified: str | None = None
    answered_by: str = ""
    max_age: float | None = None
    fetched_at: float
    nbytes: int


class Heartbeat(Wire):
    """A worker's sign of life: fetch, decode or encode. ``counters`` are totals since its start."""

    name: str
    kind: str
    host: str
    pid: int
    at: float
    ready: bool = True
    encoders: tuple[str, ...] = ()
    counters: dict[str, float] = Field(default_factory=dict)


class StoreStats(Wire):
    """The embedding cache: files of L1 and their bytes, those of L2 where there is one, and totals."""

    entries: int
    nbytes: int
    limit: int
    l2: TierStats | None = None
    totals: CacheTotals = CacheTotals()


class CacheEvent(StrEnum):
    """A kind of event of ``CacheTotals`` that happens to files, so that the index has to be told."""

    CORRUPT = "corrupt"  #: a damaged file was found and deleted
    FAILED_MOVES = "failed_moves"
    REMOVED = "removed"  #: an entry was taken out by an operator


@dataclass(frozen=True, slots=True)
class CacheRow:
    """An entry of the cache with where it lies; ``used_at`` is Unix seconds."""

    entry: Entry
    tiers: tuple[Tier, ...]
    used_at: float
    pinned: bool


@dataclass(frozen=True, slots=True)
class CachePage:
    """Some rows in no order, and where the next ones begin; None after the last."""

    rows: tuple[CacheRow, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Moved:
    """What one round of moving did; ``more``: there was more to do than one round takes."""

    promoted: int = 0
    demoted: int = 0
    failed: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class InlineHolder:
    """A job that holds the bytes of a digest that came inside its request. Times are Unix seconds.

    ``since``: when it began. ``until``: the job's deadline. Without a job id nobody holds them.
    """

    media_id: str
    job_id: str = ""
    since: float = 0.0
    until: float = 0.0


class BlobKind(StrEnum):
    """What a new blob holds; the value is the first letter of its name. An upload is written as SOURCE."""

    SOURCE = "s"  #: downloaded or uploaded bytes
    RAW = "r"  #: decoded media


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the index says of a key: the text of its entry, and where its files lie.

    ``checksum`` is that of the file in L2, empty where it is not there.
    """

    text: str | None
    in_l1: bool = True
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class TierWork:
    """What to do next: (key, checksum) to copy to L1, keys to copy to L2, keys whose file in L1 may go."""

    promote: tuple[tuple[str, str], ...] = ()
    demote: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demotion:
    """What became of a copy in L2: ``taken`` by the index; ``left_l1``: the file in L1 may go.

    ``evicted``: keys that left L2 for it; their files there may go.
    """

    taken: bool
    left_l1: bool
    evicted: tuple[str, ...] = ()
