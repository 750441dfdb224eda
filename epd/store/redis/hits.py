"""What an answer from the cache takes of a server, on the event loop of the process that asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from epd.contracts.card import EncoderCard
from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.contracts.metadata import Entry
from epd.contracts.wire import Wire
from epd.recent import Recent
from epd.store import keys
from epd.store.entry_memory import EntryMemory, EntryTexts
from epd.store.hits import Facts, Guess
from epd.store.redis.connection import Command
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

    def recalled(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts | None:
        """As they were last read here."""
        cards = [self._cards.recalled(keys.encoder(name)) for name in encoders]
        memos = [self._memos.recalled(keys.source(key)) for key in source_keys]
        return None if None in cards or None in memos else Facts(cards, memos)

    def recalled_entries(self, wanted: Sequence[str]) -> list[Entry | None]:
        """As they were last found here."""
        return [self._entries.recalled(key) for key in wanted]

    async def confirm(self, guess: Guess) -> bool:
        """Write the job, look at its grounds, and take it back where they have changed."""
        names = _names(guess.encoders, guess.source_keys)
        expected = {entry.ref.key: entry for entry in guess.done.values()}
        texts, rows, *_ = await self._connection.pipe(
            [("MGET", *names), self._lookup(list(expected)), *self._creation(guess.record, guess.done)]
        )
        facts = self._facts(names, texts, len(guess.encoders))
        if facts == guess.facts and self._at_hand(expected, rows) == list(expected.values()):
            return True
        await self._connection.pipe(
            [("UNLINK", keys.job(guess.record.job_id)), _counting(-len(guess.done))],
        )
        return False

    async def facts(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts:
        """Cards by encoder name and memos by source key."""
        names = _names(encoders, source_keys)
        return self._facts(names, await self._connection.call("MGET", *names), len(encoders))

    async def lookup(self, wanted: Sequence[str]) -> list[Entry | None]:
        """Entries that are at hand: in L1 and right. Nothing is removed here, and no hit is counted yet."""
        (rows,) = await self._connection.pipe([self._lookup(wanted)])
        return self._at_hand(wanted, rows)

    async def create(self, record: JobRecord, done: Mapping[PartId, Entry]) -> None:
        """Write a job whose parts all are done, and count its hits."""
        await self._connection.pipe(self._creation(record, done))

    def _facts(self, names: Sequence[str], texts: Sequence[str | None], encoders: int) -> Facts:
        named = list(zip(names, texts, strict=True))
        return Facts(
            [self._cards.record(*one) for one in named[:encoders]],
            [self._memos.record(*one) for one in named[encoders:]],
        )

    def _lookup(self, wanted: Sequence[str]) -> Command:
        return self._connection.script_command(Script.LOOKUP, [], (self._tiers, 0, 0, "", *wanted))

    def _at_hand(self, wanted: Iterable[str], answers: Sequence[Any]) -> list[Entry | None]:
        rows = zip(wanted, answers[::3], answers[1::3], strict=True)
        return [self._one_at_hand(key, text if in_l1 else None) for key, text, in_l1 in rows]

    def _one_at_hand(self, key: str, text: str | None) -> Entry | None:
        if text:
            return self._entries.checked(key, text)
        self._entries.forget(key)
        return None

    def _creation(self, record: JobRecord, done: Mapping[PartId, Entry]) -> list[Command]:
        texts = {part: self._texts.of(entry) for part, entry in done.items()}
        args = creation(record, texts, done.keys(), job_ttl=self._job_ttl)
        script = self._connection.script_command(Script.JOB_CREATE, [keys.job(record.job_id)], args)
        return [script, _counting(len(done))]

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def _names(encoders: Sequence[str], source_keys: Sequence[str]) -> list[str]:
    return [*map(keys.encoder, encoders), *map(keys.source, source_keys)]


def _counting(hits: int) -> Command:
    return ("HINCRBY", keys.CACHE_TOTALS, "hits_l1", hits)


def _done_text(entry: Entry) -> str:
    return PartRecord.done(entry, cached=True).to_json()


class _Read(Generic[Record]):
    """Records by name, with the texts that they were read from, so that the same text is parsed once."""

    def __init__(self, kind: type[Record], limit: int) -> None:
        self._kind = kind
        self._known: Recent[str, tuple[str, Record]] = Recent(limit)

    def recalled(self, name: str) -> Record | None:
        known = self._known.get(name)
        return None if known is None else known[1]

    def record(self, name: str, text: str | None) -> Record | None:
        known = self._known.get(name)
        if known is not None and known[0] == text:
            return known[1]
        record = read_record(self._kind, text)
        if text is None or record is None:
            self._known.forget(name)
            return None
        self._known.put(name, (text, record))
        return record
