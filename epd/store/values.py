"""The values that only the store passes: claims, waiters, memos, heartbeats and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.job import PartId, Priority
from epd.contracts.metadata import Entry
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
    """Who wants an embedding. ``message`` is the FetchMessage JSON that starts its flight anew."""

    job_id: str
    part: PartId
    message: str


@dataclass(frozen=True, slots=True)
class Companion:
    """Who waits for a flight, as its flyer sees it: the waiter's name and its FetchMessage JSON."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Completed:
    """One embedding made: its entry, and the part that made it with its stage times in seconds."""

    entry: Entry
    job_id: str
    part: PartId
    timings: dict[str, float]


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
    """What is known of a URL's content, for conditional requests. ``fetched_at`` is Unix seconds."""

    digest: str
    etag: str | None = None
    last_modified: str | None = None
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
    """Size of the embedding cache."""

    entries: int
    nbytes: int
    limit: int


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
