"""Flights in one process: the rules of ``lua/claim.lua`` and its neighbours under one lock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId, PartRecord
from epd.store.base import Claim, Companion, Completed, Waiter
from epd.store.embedding_folder import EmbeddingFolder
from epd.store.memory.index import MemoryIndex
from epd.store.memory.parts import finish_part, is_wanted
from epd.store.memory.state import Flight, MemoryState


class MemoryFlights:
    """``Flights`` over shared memory state."""

    def __init__(
        self, state: MemoryState, index: MemoryIndex, folder: EmbeddingFolder, *, lease: float, job_ttl: float
    ) -> None:
        """Times are seconds."""
        self._state = state
        self._index = index
        self._folder = folder
        self._lease = lease
        self._job_ttl = job_ttl

    def claim(self, key: str, waiter: Waiter) -> Claim:
        """Ask for an embedding; the same waiter may claim again."""
        field, now = _field(waiter.job_id, waiter.part), time.time()
        with self._state.lock:
            if self._index.has(key):
                return Claim.HIT
            flight = self._state.flights.setdefault(key, Flight())
            self._state.cache_totals["misses"] += field not in flight.waiters
            flight.waiters[field] = waiter.message
            if flight.owner not in (None, field) and flight.lease_ends > now:
                return Claim.WAITING
            flight.owner, flight.lease_ends, flight.due = field, now + self._lease, now + self._lease
            return Claim.OWNED

    def extend(self, key: str) -> None:
        """Renew a lease that is not over."""
        now = time.time()
        with self._state.lock:
            flight = self._state.flights.get(key)
            if flight is not None and flight.lease_ends > now:
                flight.lease_ends = flight.due = now + self._lease

    def complete(self, batch: Sequence[Completed]) -> list[int]:
        """Index, finish and release, then hold the byte bound."""
        with self._state.lock:
            counts = [self._complete(item) for item in batch]
            evicted = self._index.evict({item.entry.ref.key for item in batch}, pinned_too=True)
        for key in evicted:
            self._folder.remove(key)
        return counts

    def fail(self, key: str, error: EpdError) -> int:
        """Finish every waiting part with this error."""
        with self._state.lock:
            return self._finish_waiters(key, PartRecord.failed(error))

    def withdraw(self, key: str, job_id: str, part: PartId) -> str | None:
        """Take one waiter out; the message of one that should fly now, if any."""
        now = time.time()
        with self._state.lock:
            flight = self._state.flights.get(key)
            if flight is None:
                return None
            field = _field(job_id, part)
            flight.waiters.pop(field, None)
            if flight.owner not in (None, field) and flight.lease_ends > now:
                return None
            message = self._wanted_message(key, flight)
            if message is not None:
                flight.owner, flight.due = None, now + self._lease
            return message

    def flying(self, keys: Sequence[str]) -> list[bool]:
        """Whether each flight has a lease that is not over."""
        now = time.time()
        with self._state.lock:
            flights = [self._state.flights.get(key) for key in keys]
            return [one is not None and one.owner is not None and one.lease_ends > now for one in flights]

    def land(self, key: str, job_id: str, part: PartId, served: Sequence[Companion]) -> list[Companion]:
        """Take the served out; those that are left, or the end of the flight."""
        field, now = _field(job_id, part), time.time()
        with self._state.lock:
            flight = self._state.flights.get(key)
            if flight is None or (flight.owner not in (None, field) and flight.lease_ends > now):
                return []
            for name in (field, *(one.name for one in served)):
                flight.waiters.pop(name, None)
            if not flight.waiters:
                del self._state.flights[key]
            return [Companion(name, message) for name, message in flight.waiters.items()]

    def orphans(self, limit: int = 100) -> list[str]:
        """One message of each flight whose lease is over, at most ``limit``."""
        now = time.time()
        with self._state.lock:
            due = [(flight.due, key) for key, flight in self._state.flights.items() if flight.due <= now]
            found = [self._give(key, now) for _, key in sorted(due)[:limit]]
        return [message for message in found if message is not None]

    def _give(self, key: str, now: float) -> str | None:
        flight = self._state.flights[key]
        message = self._wanted_message(key, flight)
        flight.due = now + self._lease
        return message

    def _wanted_message(self, key: str, flight: Flight) -> str | None:
        for field in list(flight.waiters):
            if is_wanted(self._state, *_split(field)):
                return flight.waiters[field]
            del flight.waiters[field]
        del self._state.flights[key]
        return None

    def _complete(self, item: Completed) -> int:
        self._index.put(item.entry)
        own = PartRecord.done(item.entry, item.timings, segments=item.segments)
        count = finish_part(self._state, item.job_id, str(item.part), own, self._job_ttl)
        return count + self._finish_waiters(item.entry.ref.key, PartRecord.done(item.entry), add_missing=True)

    def _finish_waiters(self, key: str, record: PartRecord, *, add_missing: bool = False) -> int:
        flight = self._state.flights.pop(key, None)
        if flight is None:
            return 0
        count = 0
        for job_id, part in map(_split, flight.waiters):
            # A job may wait for a track that it has not written down yet: who waits for it, gets it.
            if add_missing and is_wanted(self._state, job_id, part):
                self._state.jobs[job_id].parts.setdefault(part, PartRecord())
            count += finish_part(self._state, job_id, part, record, self._job_ttl)
        return count


def _field(job_id: str, part: PartId) -> str:
    return f"{job_id}/{part}"


def _split(field: str) -> tuple[str, str]:
    job_id, _, part = field.partition("/")
    return job_id, part
