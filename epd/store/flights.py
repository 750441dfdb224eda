"""Flights on a server: single-flight over the whole fleet, one script a change (``lua/flights.lua``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain

import orjson

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId, PartRecord, SegmentUse
from epd.store import keys as names
from epd.store.cache.entry import entry_text
from epd.store.cache.index import EmbeddingIndex
from epd.store.connection import Argument, Command, Connection, portions
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.keys import milliseconds
from epd.store.scripts import Script
from epd.store.values import Claim, Completed, Waiter

logger = logging.getLogger(__name__)

#: Waiters that one call gives at most.
MAX_WAITERS = 128


class Flights:
    """Flights: one encode (or one download) that others wait for. They also hold the cache's byte bound."""

    def __init__(
        self,
        connection: Connection,
        index: EmbeddingIndex,
        folder: EmbeddingFolder,
        *,
        lease: float,
        job_ttl: float,
        embedding_ttl: float,
    ) -> None:
        """Times are seconds; ``index`` holds the byte bound of the files in ``folder``."""
        self._connection = connection
        self._index = index
        self._folder = folder
        self._lease_ms = milliseconds(lease)
        self._job_ttl_ms = milliseconds(job_ttl)
        self._embedding_ttl_ms = milliseconds(embedding_ttl)

    def claim(self, key: str, waiter: Waiter) -> Claim:
        """Ask for an embedding; atomic over the whole fleet. The same waiter may claim again."""
        args = (key, waiter.job_id, str(waiter.part), waiter.message, self._lease_ms)
        return Claim(self._connection.run(Script.CLAIM, [], args))

    def extend(self, key: str) -> None:
        """Renew a lease that is not over."""
        self._connection.run(Script.EXTEND, [], (key, self._lease_ms))

    def complete(self, batch: Sequence[Completed]) -> list[int]:
        """Index entries, release flights and finish every waiting part, in one round trip.

        Holds the byte bound of the cache afterwards. Returns for each item the number of parts that it
        finished (0 when all were final already).
        """
        if not batch:
            return []
        commands = [self._completion(portion) for portion in portions(batch)]
        commands.append(self._index.eviction([item.entry.ref.key for item in batch], pinned_too=True))
        *finished, evicted = self._connection.pipe(commands)
        self._delete_files(evicted)
        return [int(count) for count in chain.from_iterable(finished)]

    def fail(self, key: str, error: EpdError) -> int:
        """Finish every waiting part of a flight with this error and release it."""
        record = PartRecord.failed(error).to_json()
        return int(self._connection.run(Script.FAIL, [], (key, record, self._job_ttl_ms)))

    def withdraw(self, key: str, job_id: str, part: PartId) -> str | None:
        """Take one waiter out (cancelled, expired).

        Returns the message of a waiter that has to take the flight over, or None.
        """
        message = self._connection.run(Script.WITHDRAW, [], (key, job_id, str(part), self._lease_ms))
        return None if message is None else str(message)

    def flying(self, keys: Sequence[str]) -> list[bool]:
        """Whether each flight is on: it has a leader whose lease is not over. One round trip."""
        commands: list[Command] = [("EXISTS", names.flight(key)) for key in keys]
        return [bool(there) for there in self._connection.pipe(commands)] if commands else []

    def take_waiters(self, key: str, job_id: str, part: PartId, served: Sequence[Waiter]) -> list[Waiter]:
        """For a flight that makes no embedding (a download): take out ``served``, return who still waits.

        The leader serves those and calls again until none are left: then the flight is over. Returns none
        where another leads. A leader that dies in between serves some of them twice and loses none.
        """
        args: Command = (key, job_id, str(part), MAX_WAITERS, *(one.name for one in served))
        left = self._connection.run(Script.TAKE_WAITERS, [], args)
        return [Waiter.named(name, message) for name, message in zip(left[::2], left[1::2], strict=True)]

    def orphans(self, limit: int = 100) -> list[str]:
        """One waiter's message of each flight whose lease is over, at most ``limit``; its other waiters stay.

        A flight is returned once a lease, so two reapers do not both start it, and one that dies loses
        nothing.
        """
        return list(self._connection.run(Script.ORPHANS, [], (limit, self._lease_ms)))

    def _completion(self, batch: Sequence[Completed]) -> Command:
        own = chain.from_iterable(_completion_fields(item) for item in batch)
        return self._connection.script_command(
            Script.COMPLETE, [], (self._embedding_ttl_ms, self._job_ttl_ms, *own)
        )

    def _delete_files(self, evicted: Sequence[str]) -> None:
        for key in evicted:
            self._folder.remove(key)
        if evicted:
            logger.info("evicted %s embeddings from L1", len(evicted))


def _completion_fields(item: Completed) -> tuple[Argument, ...]:
    """ARGV of the script ``complete`` for one embedding."""
    ref, metadata = item.entry.ref.to_json(), item.entry.metadata.to_json()
    own = done_text(ref, metadata, item.timings, item.segments)
    return (
        item.entry.ref.key, entry_text(item.entry), item.entry.ref.nbytes,
        item.job_id, str(item.part), own, done_text(ref, metadata, {}),
    )  # fmt: skip


def done_text(
    ref: str, metadata: str, timings: Mapping[str, float], segments: SegmentUse | None = None
) -> str:
    """``PartRecord.done(...).to_json()`` from the texts of the entry, which are made once then."""
    seconds = orjson.dumps(dict(timings)).decode()
    use = "" if segments is None else f',"segments":{segments.to_json()}'
    return f'{{"state":"done","cached":false,"ref":{ref},"metadata":{metadata},"timings":{seconds}{use}}}'
