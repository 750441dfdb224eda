"""The values that only the store passes: claims, waiters, memos, heartbeats and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from epd.contracts.job import PartId
from epd.contracts.metadata import Entry
from epd.contracts.wire import Wire


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
class Completed:
    """One embedding made: its entry, and the part that made it with its stage times in seconds."""

    entry: Entry
    job_id: str
    part: PartId
    timings: dict[str, float]


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


class BlobKind(StrEnum):
    """What a new blob holds; the value is the first letter of its name. An upload is written as SOURCE."""

    SOURCE = "s"  #: downloaded or uploaded bytes
    RAW = "r"  #: decoded media
