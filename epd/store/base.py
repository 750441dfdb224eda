"""Protocols of the store; those of its blobs and of its embeddings have modules of their own.

The values that they pass are in ``epd.store.values`` and can be had from here too.

All calls are synchronous and bounded in time; when the server does not answer they raise
``StoreUnavailable``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epd.contracts.card import EncoderCard
from epd.contracts.errors import EpdError
from epd.contracts.job import JobRecord, JobView, Notice, PartId, PartRecord, Priority, Stage
from epd.store.blobs import Blobs
from epd.store.cache import Embeddings
from epd.store.handoffs import HandoffLooks, Handoffs
from epd.store.hits import Hits
from epd.store.segments import Segments
from epd.store.values import (
    BlobKind,
    Claim,
    Companion,
    Completed,
    Heartbeat,
    InlineHolder,
    Load,
    SourceMemo,
    StoreStats,
    Waiter,
)

__all__ = [
    "Admissions",
    "BlobKind",
    "Blobs",
    "Cards",
    "Claim",
    "Companion",
    "Completed",
    "Embeddings",
    "Flights",
    "Handoffs",
    "Heartbeat",
    "Heartbeats",
    "InlineHolder",
    "Jobs",
    "Load",
    "Notices",
    "SourceMemo",
    "Sources",
    "Store",
    "StoreStats",
    "Waiter",
]


class Flights(Protocol):
    """One encode that others wait for."""

    def claim(self, key: str, waiter: Waiter) -> Claim:
        """Ask for an embedding; atomic over the whole fleet. The same waiter may claim again."""
        ...

    def extend(self, key: str) -> None:
        """Renew the lease of a flight."""
        ...

    def complete(self, batch: Sequence[Completed]) -> list[int]:
        """Index entries, release flights and finish every waiting part, in one round trip.

        Returns for each item the number of parts that it finished (0 when all were final already).
        """
        ...

    def fail(self, key: str, error: EpdError) -> int:
        """Finish every waiting part of a flight with this error and release it."""
        ...

    def withdraw(self, key: str, job_id: str, part: PartId) -> str | None:
        """Take one waiter out (cancelled, expired). Where it flew and others wait: one of their messages."""
        ...

    def flying(self, keys: Sequence[str]) -> list[bool]:
        """Whether each flight is on: somebody flies and its lease is not over. One round trip."""
        ...

    def land(self, key: str, job_id: str, part: PartId, served: Sequence[Companion]) -> list[Companion]:
        """For a flight that makes no embedding (a download): take ``served`` out, give who still waits.

        Its flyer serves them and calls again, until there are none: then the flight is over. Nothing is given
        where another flies. Who dies in between serves some of them twice, and loses none.
        """
        ...

    def orphans(self, limit: int = 100) -> list[str]:
        """One waiter's message of every flight whose lease is over; the flight's other waiters stay.

        A flight that was given is not given again for one lease, so two reapers do not both start it, and
        one that dies loses nothing.
        """
        ...


class Jobs(Protocol):
    """Job records and their parts. A part becomes final once; later attempts change nothing."""

    def create(self, record: JobRecord, parts: dict[PartId, PartRecord], watcher: str | None = None) -> None:
        """Write a job with its parts (some may be final already: cached)."""
        ...

    def view(self, job_id: str) -> JobView | None:
        """The job as it stands, or None."""
        ...

    def open_parts(self, job_ids: Sequence[str]) -> list[int | None]:
        """How many parts of each job are not final; None: no such job. One round trip."""
        ...

    def watch(self, job_id: str, watcher: str) -> bool:
        """Have changes of a job published to a watcher's channel; False when there is no such job."""
        ...

    def advance(self, job_id: str, part: PartId, stage: Stage) -> bool:
        """Mark a part running at a stage. False: the part is final or the job is gone, so drop the work."""
        ...

    def advance_all(self, parts: Sequence[tuple[str, PartId]], stage: Stage) -> list[bool]:
        """``advance`` for parts of many jobs, in their order. One round trip."""
        ...

    def add_part(self, job_id: str, part: PartId) -> bool:
        """Add a part (a video's audio). Adding it again changes nothing. False: the job is gone."""
        ...

    def finish(self, job_id: str, part: PartId, record: PartRecord) -> bool:
        """Make a part final. False when it was final already or the job is gone."""
        ...

    def close(self, job_id: str, record: PartRecord) -> bool:
        """Make every part that is not final this record (cancelled or expired). False: no such job."""
        ...


class Admissions(Protocol):
    """The bound on what is in flight: a job holds its items from admission until its parts are final.

    Whatever ends a part gives its share back in the same step. What dies on the way keeps nothing for long:
    a job that is gone, final or past its time is found within half a minute.
    """

    def admit(self, job_id: str, ask: Load, *, priority: Priority, until: float) -> bool:
        """Hold a job's items and bytes until Unix time ``until`` at most; False when they do not fit."""
        ...

    def release(self, job_id: str) -> None:
        """Hold nothing for a job that was not started after all."""
        ...

    def held(self, priority: Priority | None = None) -> Load:
        """What is held by all jobs, or by those of one priority."""
        ...


class Cards(Protocol):
    """Encoder cards, as announced by GPU workers."""

    def announce(self, card: EncoderCard) -> None:
        """Publish a card; it stays until another of that name replaces it."""
        ...

    def get(self, names: Sequence[str]) -> list[EncoderCard | None]:
        """Cards in the order of the names."""
        ...


class Sources(Protocol):
    """The URL memo."""

    def get(self, source_key: str) -> SourceMemo | None:
        """What is known of a URL's content."""
        ...

    def put(self, source_key: str, memo: SourceMemo) -> None:
        """Remember it."""
        ...

    def sound(self, digest: str) -> bool | None:
        """Whether a video's bytes have sound; None where no decoder has looked lately."""
        ...

    def note_sound(self, digest: str, present: bool) -> None:
        """Remember it, for about as long as a job may take."""
        ...


class Heartbeats(Protocol):
    """Signs of life of every worker."""

    def beat(self, heartbeat: Heartbeat) -> None:
        """Say that a worker lives; it counts for ``heartbeat_ttl`` seconds."""
        ...

    def leave(self, name: str) -> None:
        """A worker says goodbye."""
        ...

    def alive(self) -> list[Heartbeat]:
        """All workers whose last beat still counts."""
        ...


class Notices(Protocol):
    """Changes of part states, published to the processes that watch a job."""

    def listen(self, watcher: str, timeout: float) -> list[Notice]:
        """Wait at most ``timeout`` seconds for notices on a watcher's channel. One thread a watcher."""
        ...

    def close(self) -> None:
        """End the subscription."""
        ...


def _nothing() -> None:
    """There is no connection to close."""


@dataclass(frozen=True, slots=True)
class Store:
    """All parts of the store, over one server and one pair of directories."""

    embeddings: Embeddings
    flights: Flights
    jobs: Jobs
    admissions: Admissions
    handoffs: Handoffs
    blobs: Blobs
    cards: Cards
    sources: Sources
    segments: Segments
    heartbeats: Heartbeats
    notices: Notices
    disconnect: Callable[[], None] = _nothing
    hits: Hits | None = None  #: answers from the cache on an event loop; without it they take a thread
    handoff_looks: HandoffLooks | None = None  #: the same of handoffs

    def close(self) -> None:
        """End subscriptions and connections. A later call connects anew."""
        self.notices.close()
        self.disconnect()
