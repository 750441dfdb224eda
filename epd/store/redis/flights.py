"""Flights on a server: single-flight over the whole fleet, one script a change (``lua/flights.lua``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain

import orjson

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId, PartRecord, SegmentUse
from epd.store import keys as names
from epd.store.base import Claim, Companion, Completed, Waiter
from epd.store.clock import milliseconds
from epd.store.embedding_folder import EmbeddingFolder
from epd.store.entry_text import entry_text
from epd.store.redis.connection import Argument, Command, Connection
from epd.store.redis.index import RedisIndex
from epd.store.redis.portions import portions
from epd.store.redis.scripts import Script

logger = logging.getLogger(__name__)

#: Companions that one landing gives at most.
MAX_COMPANIONS = 128


class RedisFlights:
    """``Flights`` on a server, with the byte bound of the embedding cache."""

    def __init__(
        self,
        connection: Connection,
        index: RedisIndex,
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
        """Ask for an embedding; the same waiter may claim again."""
        args = (key, waiter.job_id, str(waiter.part), waiter.message, self._lease_ms)
        return Claim(self._connection.run(Script.CLAIM, [], args))

    def extend(self, key: str) -> None:
        """Renew a lease that is not over."""
        self._connection.run(Script.EXTEND, [], (key, self._lease_ms))

    def complete(self, batch: Sequence[Completed]) -> list[int]:
        """Index, finish and release in one round trip, then hold the byte bound."""
        if not batch:
            return []
        commands = [self._completion(portion) for portion in portions(batch)]
        commands.append(self._index.eviction([item.entry.ref.key for item in batch], pinned_too=True))
        *finished, evicted = self._connection.pipe(commands)
        self._delete_files(evicted)
        return [int(count) for count in chain.from_iterable(finished)]

    def fail(self, key: str, error: EpdError) -> int:
        """Finish every waiting part with this error."""
        record = PartRecord.failed(error).to_json()
        return int(self._connection.run(Script.FAIL, [], (key, record, self._job_ttl_ms)))

    def withdraw(self, key: str, job_id: str, part: PartId) -> str | None:
        """Take one waiter out; the message of one that should fly now, if any."""
        message = self._connection.run(Script.WITHDRAW, [], (key, job_id, str(part), self._lease_ms))
        return None if message is None else str(message)

    def flying(self, keys: Sequence[str]) -> list[bool]:
        """Whether each flight has a lease that is not over."""
        commands: list[Command] = [("EXISTS", names.flight(key)) for key in keys]
        return [bool(there) for there in self._connection.pipe(commands)] if commands else []

    def land(self, key: str, job_id: str, part: PartId, served: Sequence[Companion]) -> list[Companion]:
        """Take the served out; those that are left, or the end of the flight."""
        args: Command = (key, job_id, str(part), MAX_COMPANIONS, *(one.name for one in served))
        left = self._connection.run(Script.TAKE_WAITERS, [], args)
        return [Companion(name, message) for name, message in zip(left[::2], left[1::2], strict=True)]

    def orphans(self, limit: int = 100) -> list[str]:
        """One message of each flight whose lease is over, at most ``limit``."""
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
