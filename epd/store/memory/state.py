"""What the in-memory store's parts share: one lock, and the same records that the server's keys hold."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from epd.contracts.cache import Tier
from epd.contracts.job import JobRecord, Notice, PartRecord, Priority

#: Notices kept for a watcher between two calls of ``listen``; older ones are dropped.
MAX_NOTICES = 10_000


@dataclass(slots=True)
class JobState:
    """One job: its record, its parts by id text, and when it is forgotten (Unix seconds)."""

    record: JobRecord
    parts: dict[str, PartRecord]
    ends_at: float
    watchers: list[str] = field(default_factory=list)
    closed: bool = False


@dataclass(slots=True)
class IndexEntry:
    """An index entry as text, as the server holds it, and when it ends (Unix seconds)."""

    text: str
    ends_at: float


@dataclass(slots=True)
class TierFile:
    """A file that a tier names: its size, when it was used last (Unix seconds), and its checksum in L2."""

    nbytes: int
    used_at: float
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """Until when (Unix seconds) an embedding is kept, and who alone holds it ('' where nobody may end it)."""

    until: float
    holder: str


@dataclass(slots=True)
class Flight:
    """One encode: who flies until when (Unix seconds), and the messages of all who wait by "job/part"."""

    owner: str | None = None
    lease_ends: float = 0.0
    due: float = 0.0
    waiters: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class HeldLoad:
    """What one admitted job holds. Times are Unix seconds: the end of it, and when it is looked at next."""

    priority: Priority
    items: int
    nbytes: int
    ends_at: float
    check_at: float


class MemoryState:
    """Shared by the parts of one in-memory store. Hold ``lock`` to read or write anything."""

    def __init__(self) -> None:
        """Empty."""
        self.lock = threading.RLock()
        self.published = threading.Condition(self.lock)
        self.jobs: dict[str, JobState] = {}
        self.entries: dict[str, IndexEntry] = {}
        self.tiers: dict[Tier, dict[str, TierFile]] = {tier: {} for tier in Tier}
        self.wanted_in_l1: dict[str, None] = {}
        self.mover: tuple[str, float] = ("", 0.0)
        self.cache_totals: Counter[str] = Counter()
        self.flights: dict[str, Flight] = {}
        self.pins: dict[str, Pin] = {}
        self.loads: dict[str, HeldLoad] = {}
        self.notices: dict[str, deque[Notice]] = {}

    def job(self, job_id: str) -> JobState | None:
        """A job that is not forgotten yet; forgotten ones are dropped."""
        job = self.jobs.get(job_id)
        if job is not None and job.ends_at <= time.time():
            del self.jobs[job_id]
            return None
        return job

    def is_pinned(self, key: str) -> bool:
        """Whether a pin holds an embedding; ended pins are dropped."""
        pin = self.pins.get(key)
        if pin is not None and pin.until > time.time():
            return True
        self.pins.pop(key, None)
        return False

    def publish(self, job: JobState, notice: Notice) -> None:
        """Give a notice to every watcher of a job that listens already; to the others it is lost."""
        for watcher in job.watchers:
            if watcher in self.notices:
                self.notices[watcher].append(notice)
        self.published.notify_all()
