"""Flights: single-flight over the whole fleet (``lua/flights.lua``).

Parts that need the same embedding, or the same download, join one flight. The first one leads: it does the
work, and the others wait. If the leader's lease ends, a waiter's message starts the flight again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import orjson

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId, PartRecord, SegmentUse
from epd.store import keys as redis_keys
from epd.store.cache.entry import entry_text
from epd.store.cache.index import EmbeddingIndex
from epd.store.connection import Connection, chunks, script_command
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.keys import milliseconds
from epd.store.scripts import Argument, Command, Script
from epd.store.values import Claim, Completed, Waiter

logger = logging.getLogger(__name__)

#: Waiters that one call of ``take_waiters`` returns at most.
MAX_WAITERS = 128


class Flights:
    """Claims, leases and waiters. Completing flights also keeps the cache within its bound in bytes."""

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
        """Use an index, which bounds the bytes in ``folder`` (L1). Times are seconds."""
        self._connection = connection
        self._index = index
        self._folder = folder
        self._lease_ms = milliseconds(lease)
        self._job_ttl_ms = milliseconds(job_ttl)
        self._embedding_ttl_ms = milliseconds(embedding_ttl)

    def claim(self, key: str, waiter: Waiter) -> Claim:
        """Ask for an embedding or a download, atomically over the fleet. A waiter may claim again."""
        ((answer,),) = self._connection.pipe([claim_command([(key, waiter)], self._lease_ms)])
        return Claim(answer)

    def extend(self, flights: Collection[str]) -> None:
        """Renew the leases of flights, by key, unless they have ended. One round trip."""
        if flights:
            self._connection.pipe(
                [script_command(Script.EXTEND, [], (key, self._lease_ms)) for key in flights]
            )

    def complete(self, batch: Sequence[Completed]) -> list[int]:
        """Index embeddings, finish all parts that wait for them, and end their flights. One round trip.

        Evicts from L1 what is over its limit then.

        Returns:
            For each embedding the number of parts that it finished; 0 if all were final before.
        """
        if not batch:
            return []
        commands = [self._complete_command(chunk) for chunk in chunks(batch)]
        commands.append(self._index.evict_command([item.entry.ref.key for item in batch], pinned_too=True))
        *finished, evicted = self._connection.pipe(commands)
        self._delete_files(evicted)
        return [int(count) for count in chain.from_iterable(finished)]

    def fail(self, key: str, error: EpdError) -> int:
        """End a flight, and give all of its waiting parts this error. Returns how many there were."""
        record = PartRecord.failed(error).to_json()
        return int(self._connection.run(Script.FAIL, [], (key, record, self._job_ttl_ms)))

    def withdraw(self, key: str, job_id: str, part: PartId) -> str | None:
        """Remove a part that was cancelled or has expired.

        Returns:
            If the part led the flight and others wait, the message of its successor, for the caller to
            publish.
        """
        message = self._connection.run(Script.WITHDRAW, [], (key, job_id, str(part), self._lease_ms))
        return None if message is None else str(message)

    def active(self, keys: Sequence[str]) -> list[bool]:
        """Whether each flight has a leader whose lease has not ended. One round trip."""
        commands: list[Command] = [("EXISTS", redis_keys.flight(key)) for key in keys]
        return [bool(found) for found in self._connection.pipe(commands)] if commands else []

    def take_waiters(self, key: str, job_id: str, part: PartId, served: Sequence[Waiter]) -> list[Waiter]:
        """For a flight that makes no embedding (a download): remove served waiters, and return others.

        The leader serves what it gets and calls again until nothing is left. Then the flight has ended. A
        leader that dies in between serves some waiters twice and loses none.

        Returns:
            At most ``MAX_WAITERS``; none if another part leads.
        """
        return waiters_of(self._connection.pipe([take_waiters_command(key, job_id, part, served)])[0])

    def orphans(self, limit: int = 100) -> list[str]:
        """Return one waiter's message for each of up to ``limit`` flights whose lease has ended.

        A flight is returned only once per lease. So two reapers do not both start it again, and a reaper
        that dies loses nothing.
        """
        return list(self._connection.run(Script.ORPHANS, [], (limit, self._lease_ms)))

    def _complete_command(self, batch: Sequence[Completed]) -> Command:
        fields = chain.from_iterable(_completed_fields(item) for item in batch)
        return script_command(Script.COMPLETE, [], (self._embedding_ttl_ms, self._job_ttl_ms, *fields))

    def _delete_files(self, evicted: Sequence[str]) -> None:
        for key in evicted:
            self._folder.remove(key)
        if evicted:
            logger.info("evicted %s embeddings from L1", len(evicted))


def claim_command(claims: Sequence[tuple[str, Waiter]], lease_ms: int) -> Command:
    """The command that claims flights for waiters, by key. It answers with a ``Claim`` for each."""
    fields = [(key, each.job_id, str(each.part), each.message) for key, each in claims]
    return script_command(Script.CLAIM, [], (lease_ms, *chain.from_iterable(fields)))


def take_waiters_command(key: str, job_id: str, part: PartId, served: Sequence[Waiter] = ()) -> Command:
    """The command of ``Flights.take_waiters``; ``waiters_of`` reads its answer."""
    args: Command = (key, job_id, str(part), MAX_WAITERS, *(waiter.name for waiter in served))
    return script_command(Script.TAKE_WAITERS, [], args)


def waiters_of(answer: Sequence[str]) -> list[Waiter]:
    """The waiters in the answer to a ``take_waiters_command``."""
    return [Waiter.named(name, message) for name, message in zip(answer[::2], answer[1::2], strict=True)]


def _completed_fields(item: Completed) -> tuple[Argument, ...]:
    """ARGV of the script ``complete`` for one embedding."""
    ref, metadata = item.entry.ref.to_json(), item.entry.metadata.to_json()
    leader_record = done_text(ref, metadata, item.timings, item.segments)
    waiter_record = done_text(ref, metadata, {})
    return (
        item.entry.ref.key, entry_text(item.entry), item.entry.ref.nbytes,
        item.job_id, str(item.part), leader_record, waiter_record,
    )  # fmt: skip


def done_text(
    ref: str, metadata: str, timings: Mapping[str, float], segments: SegmentUse | None = None
) -> str:
    """Equal to ``PartRecord.done(...).to_json()``, from JSON of reference and metadata that is made once."""
    seconds = orjson.dumps(dict(timings)).decode()
    use = "" if segments is None else f',"segments":{segments.to_json()}'
    return f'{{"state":"done","cached":false,"ref":{ref},"metadata":{metadata},"timings":{seconds}{use}}}'
