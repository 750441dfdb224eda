"""What the API reads and writes on its event loop: cards, URL memos, cached entries, and jobs that are done.

What a process read lately is kept, so that equal texts are parsed once and an unchanged file is opened once.
Every look-up still reads the texts from the server and the inode, size and time of each file. A file that was
replaced, cut or written to differs in one of these and is checked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import NotFound
from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.store import keys as names
from epd.store.cache.entry import read_entry
from epd.store.connection import Argument, Command, read_record
from epd.store.files.embedding_folder import EmbeddingFolder, FileStamp
from epd.store.files.tiers import TierFiles
from epd.store.jobs import counting, creation
from epd.store.loop_connection import LoopConnection, ThreadConnection
from epd.store.scripts import Script
from epd.store.values import SourceMemo

#: Seconds for which a card is believed without asking again. A missing card is asked for each time.
CARD_SECONDS = 2.0
#: Entries that are kept, some 3 KB each, and memos.
ENTRIES, MEMOS = 4096, 4096
#: After so many entries the event loop serves others first.
_AT_ONCE = 64

#: The embedding keys that follow from URL memos, given in the order of their source keys.
KeysOf = Callable[[Sequence[SourceMemo | None]], Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False)
class CachedPart:
    """A finished part whose embedding was in the cache, and its JSON. It equals only itself: a cheap key."""

    record: PartRecord
    text: str


@dataclass(slots=True)
class LookedUp:
    """The result of one look-up.

    ``parts`` are those that can be used as they are, by embedding key. ``unsure`` are keys that the index has
    while their file is not in L1 or is not what the index says: ``Embeddings.lookup`` decides about these.
    """

    memos: list[SourceMemo | None] = field(default_factory=list)
    parts: dict[str, CachedPart] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)


class RecentEntries:
    """For one event loop. No call blocks it; each raises ``StoreUnavailable`` when the server is silent."""

    def __init__(
        self, connection: LoopConnection | ThreadConnection, files: TierFiles, *, job_ttl: float
    ) -> None:
        """Keep finished jobs ``job_ttl`` seconds, as ``RedisJobs`` does."""
        self._connection = connection
        self._tiers = files.tiers
        self._parts = PartMemory(files.l1)
        self._cards: dict[str, tuple[float, EncoderCard]] = {}
        self._memos: dict[str, tuple[str, SourceMemo | None]] = {}
        self._job_ttl = job_ttl

    async def cards(self, encoders: Sequence[str]) -> list[EncoderCard | None]:
        """Cards in the order of the encoders' names, at most ``CARD_SECONDS`` old."""
        now = time.monotonic()
        stale = [name for name in encoders if now - self._read_at(name) >= CARD_SECONDS]
        if stale:
            texts = await self._connection.call("MGET", *map(names.encoder, stale))
            for name, text in zip(stale, texts, strict=True):
                self._keep_card(name, read_record(EncoderCard, text), now)
        return [self._card(name) for name in encoders]

    async def lookup(self, source_keys: Sequence[str], keys_of: KeysOf) -> LookedUp:
        """The memos of sources and the cached parts that follow from them; refreshes their last use.

        One round trip where every memo is the one that was read last; a changed or new memo costs a second
        one. Nothing is removed, and no hit is counted.
        """
        looked = LookedUp([self._last_memo(key) for key in source_keys])
        asked = keys_of(looked.memos)
        texts = await self._read(source_keys, asked, looked)
        memos = [self._memo(key, text) for key, text in zip(source_keys, texts, strict=True)]
        if memos != looked.memos:
            looked.memos = memos
            known = set(asked)
            await self._read([], [key for key in keys_of(memos) if key not in known], looked)
        return looked

    async def create(self, record: JobRecord, done: Mapping[PartId, CachedPart]) -> None:
        """Write a job whose parts are all done, and count them as hits; one round trip."""
        texts = {part_id: part.text for part_id, part in done.items()}
        args = creation(record, texts, done.keys(), job_ttl=self._job_ttl)
        job = self._connection.script_command(Script.JOB_CREATE, [names.job(record.job_id)], args)
        await self._connection.pipe([job, counting(len(done))])

    async def close(self) -> None:
        """Close the connection, on its own loop. A later call connects again."""
        await self._connection.close()

    async def _read(
        self, source_keys: Sequence[str], keys: Sequence[str], looked: LookedUp
    ) -> list[str | None]:
        """The texts of memos; what the index has of the keys goes into ``looked``."""
        commands: list[Command] = []
        if source_keys:
            commands.append(("MGET", *map(names.source, source_keys)))
        if keys:
            args: list[Argument] = [self._tiers, 0, 0, "", *keys]
            commands.append(self._connection.script_command(Script.LOOKUP, [], args))
        answers = await self._connection.pipe(commands) if commands else []
        if keys:
            await self._take(keys, answers[-1], looked)
        return answers[0] if source_keys else []

    async def _take(self, keys: Sequence[str], rows: Sequence[Any], looked: LookedUp) -> None:
        for number, (key, text, in_l1) in enumerate(zip(keys, rows[::3], rows[1::3], strict=True), start=1):
            part = self._parts.part(key, text) if text and in_l1 else None
            if part is not None:
                looked.parts[key] = part
            elif text is not None:
                looked.unsure.append(key)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _read_at(self, encoder: str) -> float:
        known = self._cards.get(encoder)
        return float("-inf") if known is None else known[0]

    def _card(self, encoder: str) -> EncoderCard | None:
        known = self._cards.get(encoder)
        return None if known is None else known[1]

    def _keep_card(self, encoder: str, card: EncoderCard | None, now: float) -> None:
        """Keep a card; an equal one stays the same object, so that comparing it costs nothing."""
        known = self._card(encoder)
        if card is None:
            self._cards.pop(encoder, None)
        else:
            self._cards[encoder] = (now, known if known == card and known is not None else card)

    def _last_memo(self, source_key: str) -> SourceMemo | None:
        known = self._memos.get(source_key)
        return None if known is None else known[1]

    def _memo(self, source_key: str, text: str | None) -> SourceMemo | None:
        """The memo of a text, parsed once; the one that was used least recently is dropped."""
        known = self._memos.pop(source_key, None)
        if text is None:
            return None
        if known is None or known[0] != text:
            known = (text, read_record(SourceMemo, text))
        self._memos[source_key] = known
        if len(self._memos) > MEMOS:
            del self._memos[next(iter(self._memos))]
        return known[1]


class PartMemory:
    """Checks entries against the files of L1, once for as long as text and file stay the same."""

    def __init__(self, folder: EmbeddingFolder, *, limit: int = ENTRIES) -> None:
        """Keep ``limit`` parts."""
        self._folder = folder
        self._known = lru_cache(limit)(self._checked)

    def part(self, key: str, text: str) -> CachedPart | None:
        """The part that an entry of the index finishes; None where the entry or its file cannot be used."""
        stamp = self._folder.stamp(key)
        if stamp is None:
            return None
        try:
            return self._known(key, text, stamp)
        except (ValueError, NotFound):
            return None

    def _checked(self, key: str, text: str, _: FileStamp) -> CachedPart:
        entry = read_entry(key, text)
        self._folder.check(entry.ref)
        record = PartRecord.done(entry, cached=True)
        return CachedPart(record, record.to_json())
