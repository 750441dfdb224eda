"""What an answer from the cache takes of a server, on the event loop of the process that asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from epd.contracts.card import EncoderCard
from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.contracts.metadata import Entry
from epd.contracts.wire import Wire
from epd.recent import Recent
from epd.store import keys
from epd.store.entry_memory import EntryMemory, EntryTexts
from epd.store.hits import Facts
from epd.store.redis.jobs import creation
from epd.store.redis.loop_connection import LoopConnection
from epd.store.redis.reading import read_record
from epd.store.redis.scripts import Script
from epd.store.tier_files import TierFiles
from epd.store.values import SourceMemo

_CARDS, _MEMOS = 64, 4096

Record = TypeVar("Record", bound=Wire)


class RedisHits:
    """``Hits`` on a server."""

    def __init__(self, connection: LoopConnection, files: TierFiles, *, job_ttl: float) -> None:
        """Keep finished jobs ``job_ttl`` seconds, as ``RedisJobs``."""
        self._connection = connection
        self._entries = EntryMemory(files.l1)
        self._tiers = files.tiers
        self._texts = EntryTexts(_done_text)
        self._cards = _Read(EncoderCard, _CARDS)
        self._memos = _Read(SourceMemo, _MEMOS)
        self._job_ttl = job_ttl

    async def facts(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts:
        """Cards by encoder name and memos by source key."""
        names = [*map(keys.encoder, encoders), *map(keys.source, source_keys)]
        texts = await self._connection.call("MGET", *names)
        split = len(encoders)
        return Facts(
            [self._cards.record(text) for text in texts[:split]],
            [self._memos.record(text) for text in texts[split:]],
        )

    async def lookup(self, wanted: Sequence[str]) -> list[Entry | None]:
        """Entries that are at hand: in L1 and right. Nothing is removed here, and no hit is counted yet."""
        answers = await self._connection.run(Script.LOOKUP, [], (self._tiers, 0, 0, "", *wanted))
        rows = zip(wanted, answers[::3], answers[1::3], strict=True)
        return [self._entries.checked(key, text) if in_l1 and text else None for key, text, in_l1 in rows]

    async def create(self, record: JobRecord, done: Mapping[PartId, Entry]) -> None:
        """Write a job whose parts all are done, and count its hits."""
        texts = {part: self._texts.of(entry) for part, entry in done.items()}
        args = creation(record, texts, done.keys(), job_ttl=self._job_ttl)
        await self._connection.pipe(
            [
                self._connection.script_command(Script.JOB_CREATE, [keys.job(record.job_id)], args),
                ("HINCRBY", keys.CACHE_TOTALS, "hits_l1", len(done)),
            ]
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def _done_text(entry: Entry) -> str:
    return PartRecord.done(entry, cached=True).to_json()


class _Read(Generic[Record]):
    """Records by the text that they were read from, so that the same text is parsed once."""

    def __init__(self, kind: type[Record], limit: int) -> None:
        self._kind = kind
        self._known: Recent[str, Record] = Recent(limit)

    def record(self, text: str | None) -> Record | None:
        if text is None:
            return None
        record = self._known.get(text)
        if record is None:
            record = read_record(self._kind, text)
            if record is not None:
                self._known.put(text, record)
        return record
