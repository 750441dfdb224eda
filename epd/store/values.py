"""The values that the calls of the store take and return, apart from those in ``epd.contracts``.

Times are Unix seconds and sizes are bytes, unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.embedding import Entry
from epd.contracts.job import PartId, SegmentUse
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.contracts.wire import Wire

#: Processes that can follow one job, or wait for one handoff, at once.
MAX_WATCHERS = 32


class Claim(StrEnum):
    """The answer to a claim on an embedding key or a download."""

    HIT = "hit"  #: The embedding exists.
    OWNED = "owned"  #: The claimer leads the flight (it may have led it before).
    WAITING = "waiting"  #: Another part leads. The claimer's part ends with that flight.


@dataclass(frozen=True, slots=True)
class Waiter:
    """A part in a flight. ``message`` is the JSON of the FetchMessage that starts the flight again."""

    job_id: str
    part: PartId
    message: str

    @classmethod
    def named(cls, name: str, message: str) -> Waiter:
        """The inverse of ``name``.

        Raises:
            ValueError: ``name`` is not ``"job/part"``.
        """
        job_id, _, part = name.partition("/")
        return cls(job_id, PartId.parse(part), message)

    @property
    def name(self) -> str:
        """``"job/part"``, the field of this waiter in its flight."""
        return f"{self.job_id}/{self.part}"


@dataclass(frozen=True, slots=True)
class Completed:
    """A new embedding: its entry, and the part that made it. ``timings`` are seconds by stage."""

    entry: Entry
    job_id: str
    part: PartId
    timings: dict[str, float]
    segments: SegmentUse | None = None


class SourceMemo(Wire):
    """What is known of the content behind a URL, for conditional requests.

    Attributes:
        digest: sha256 of the content.
        answered_by: The source key of the URL that answered after redirects. ``etag`` and ``last_modified``
            belong to it.
        max_age: Seconds for which the server allows the content to be reused; None if it did not say.
        fetched_at: The start of the last request to the server.
    """

    digest: str
    etag: str | None = None
    last_modified: str | None = None
    answered_by: str = ""
    max_age: float | None = None
    fetched_at: float
    nbytes: int


class Heartbeat(Wire):
    """A sign of life of a fetch, decode or encode worker. ``counters`` are totals since its start."""

    name: str
    kind: str
    host: str
    pid: int
    at: float
    ready: bool = True
    encoders: tuple[str, ...] = ()
    counters: dict[str, float] = Field(default_factory=dict)


class StoreStats(Wire):
    """The embedding cache: files in L1 and their bytes, the same of L2 if there is one, and totals."""

    entries: int
    nbytes: int
    limit: int
    l2: TierStats | None = None
    totals: CacheTotals = CacheTotals()


class CacheEvent(StrEnum):
    """Events that happen to files, so that the index learns of them from its callers. See ``CacheTotals``."""

    CORRUPT = "corrupt"  #: A damaged file was found and deleted.
    FAILED_MOVES = "failed_moves"
    REMOVED = "removed"  #: An operator removed an entry.


@dataclass(frozen=True, slots=True)
class CacheRow:
    """An entry of the cache, the tiers that have its file, its last use, and whether it is pinned."""

    entry: Entry
    tiers: tuple[Tier, ...]
    used_at: float
    pinned: bool


@dataclass(frozen=True, slots=True)
class CachePage:
    """Some rows of the cache in no order, and the cursor of the next page; None after the last one."""

    rows: tuple[CacheRow, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Moved:
    """The files that one round of moving promoted, demoted and failed to move.

    ``more`` is true when there is work left for another round.
    """

    promoted: int = 0
    demoted: int = 0
    failed: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class InlineHolder:
    """A job that holds the inline bytes of a digest, from ``since`` until ``until``, the job's deadline.

    An empty job id says that no job holds them.
    """

    media_id: str
    job_id: str = ""
    since: float = 0.0
    until: float = 0.0


class BlobKind(StrEnum):
    """What a new blob contains. The value is the first letter of its name."""

    SOURCE = "s"  #: Downloaded or uploaded bytes.
    RAW = "r"  #: Decoded media.


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the index says of a key: the text of its entry, and which tiers have its file.

    ``checksum`` is that of the file in L2, empty if there is none.
    """

    text: str | None
    in_l1: bool = True
    checksum: str = ""
