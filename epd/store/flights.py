"""Flights: single-flight over the whole fleet (``lua/flights.lua``).

Parts that need the same embedding, or the same download, join one flight. The first one leads: it does the
work, and the others wait. If the leader's lease ends, a waiter's message starts the flight again.
``FetchSteps`` has the round trips of a fetch: one before the downloads, and one after each.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import orjson

from epd.contracts.errors import EpdError
from epd.contracts.job import PartId, PartRecord, SegmentUse, Stage
from epd.store import keys as redis_keys
from epd.store.cache.entry import entry_text
from epd.store.cache.index import EmbeddingIndex
from epd.store.connection import Connection, chunks, read_record, script_command
from epd.store.files.embedding_folder import EmbeddingFolder
from epd.store.jobs import advance_command
from epd.store.keys import milliseconds
from epd.store.scripts import Argument, Command, Script
from epd.store.values import Claim, Completed, SourceMemo, Waiter

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


@dataclass(frozen=True, slots=True)
class Download:
    """A download that items share: the key of its flight, the source key of its URL, and who asks for it."""

    key: str
    source_key: str
    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Starting:
    """An item that is about to be fetched: the parts that it may have, and its download if it has a URL."""

    parts: Sequence[PartId]
    download: Download | None


@dataclass(frozen=True, slots=True)
class Started:
    """The answer for one item.

    ``open_parts`` have no result yet; without any, the item's work is dropped. ``claim`` is the answer of the
    download's flight and ``memo`` what is known of the URL, where there is one.
    """

    open_parts: frozenset[PartId]
    claim: Claim | None = None
    memo: SourceMemo | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """After a download: the claim on the embedding, whether the part is still open, and who waits."""

    claim: Claim
    is_open: bool
    waiters: Sequence[Waiter]


class FetchSteps:
    """The round trips of a fetch. Each may be repeated."""

    def __init__(self, connection: Connection, *, lease: float, memo_ttl: float) -> None:
        """A flight lives ``lease`` seconds without renewal, and a memo ``memo_ttl`` seconds."""
        self._connection = connection
        self._lease_ms = milliseconds(lease)
        self._memo_ttl_ms = milliseconds(memo_ttl)

    def start(self, job_id: str, items: Sequence[Starting]) -> list[Started]:
        """Mark the items of a job as being fetched, claim their downloads, and read the memos of their URLs.

        A claim is made for items that turn out to have no open part, too; the caller leaves it then.
        """
        parts = [(job_id, part) for item in items for part in item.parts]
        downloads = [item.download for item in items if item.download is not None]
        commands = [advance_command(parts, Stage.FETCH)]
        if downloads:
            commands.append(claim_command([(each.key, each.waiter) for each in downloads], self._lease_ms))
            commands.append(("MGET", *(redis_keys.source(each.source_key) for each in downloads)))
        advanced, *claimed = self._connection.pipe(commands)
        is_open = dict(zip((part for _, part in parts), advanced, strict=True))
        answers = iter(zip(*claimed, strict=True))
        return [self._started(item, is_open, next(answers) if item.download else None) for item in items]

    def _started(
        self, item: Starting, is_open: dict[PartId, int], answer: tuple[str, str | None] | None
    ) -> Started:
        open_parts = frozenset(part for part in item.parts if is_open[part])
        if answer is None:
            return Started(open_parts)
        claim, memo = answer
        return Started(open_parts, Claim(claim), read_record(SourceMemo, memo))

    def arrive(self, download: Download, memo: SourceMemo, embedding: str, waiter: Waiter) -> Arrived:
        """Note what was downloaded, claim the embedding of the item's only part, and take those who wait.

        Args:
            download: The download, which the item leads.
            memo: What is now known of the URL.
            embedding: The key of the embedding that the item needs.
            waiter: The item as a waiter for that embedding.
        """
        leader = download.waiter
        commands: list[Command] = [
            ("SET", redis_keys.source(download.source_key), memo.to_json(), "PX", self._memo_ttl_ms),
            claim_command([(embedding, waiter)], self._lease_ms),
            advance_command([(waiter.job_id, waiter.part)], Stage.DECODE),
            take_waiters_command(download.key, leader.job_id, leader.part),
        ]
        _, (claim,), (is_open,), left = self._connection.pipe(commands)
        return Arrived(Claim(claim), bool(is_open), waiters_of(left))


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
