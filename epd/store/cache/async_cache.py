"""The cache on an event loop: lookups, and the jobs of requests whose parts are all cached.

A process keeps what it has read recently, so that a text that stays the same is parsed once and a file that
stays the same is opened once. Every lookup still reads the texts from the server, and the inode, size and
modification time of each file. A file that was replaced, cut or written to differs in one of these, and is
checked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import NotFound
from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.store import keys as redis_keys
from epd.store.cache.entry import read_entry
from epd.store.connection import read_record, script_command
from epd.store.files.embedding_folder import EmbeddingFolder, FileStamp
from epd.store.files.tiers import TierFiles
from epd.store.jobs import count_hits_command, create_command
from epd.store.loop_connection import AsyncConnection
from epd.store.scripts import Argument, Command, Script
from epd.store.values import SourceMemo

#: Seconds for which a card is reused without reading it again. A missing card is read each time.
CARD_SECONDS = 2.0
#: Parts that are kept, some 3 KB each.
ENTRIES = 4096
#: URL memos that are kept.
MEMOS = 4096

#: Entries that are checked before the event loop may serve other requests.
_YIELD_EVERY = 64

#: Derives the embedding keys of a request from the URL memos of its sources, in the order of their keys.
KeysOf = Callable[[Sequence[SourceMemo | None]], Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False)
class CachedPart:
    """A finished part whose embedding is cached, and its JSON. Equal only to itself, so hashing is cheap."""

    record: PartRecord
    text: str


@dataclass(slots=True)
class LookedUp:
    """The result of one lookup.

    Attributes:
        memos: The URL memos, in the order of the source keys.
        parts: Parts that can be used as they are, by embedding key.
        unsure: Keys that the index has, while their file is not in L1 or does not agree with the index.
            ``Embeddings.lookup`` decides about these.
    """

    memos: list[SourceMemo | None] = field(default_factory=list)
    parts: dict[str, CachedPart] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)


class AsyncCache:
    """Reads and writes for one event loop, which no call blocks.

    Each call raises ``StoreUnavailable`` when the server refuses it or does not answer in time.
    """

    def __init__(self, connection: AsyncConnection, files: TierFiles, *, job_ttl: float) -> None:
        """Own a connection. Finished jobs are kept for ``job_ttl`` seconds."""
        self._connection = connection
        self._tiers = files.tiers
        self._parts = PartMemory(files.l1)
        self._memos = _MemoMemory()
        self._cards: dict[str, tuple[float, EncoderCard]] = {}
        self._job_ttl = job_ttl

    async def cards(self, encoders: Sequence[str]) -> list[EncoderCard | None]:
        """Return the cards of encoders by name, in order, at most ``CARD_SECONDS`` old."""
        now = time.monotonic()
        stale = [name for name in encoders if not self._has_fresh_card(name, now)]
        if stale:
            texts = await self._connection.call("MGET", *map(redis_keys.encoder, stale))
            for name, text in zip(stale, texts, strict=True):
                self._keep_card(name, read_record(EncoderCard, text), now)
        return [self._card(name) for name in encoders]

    async def lookup(self, source_keys: Sequence[str], keys_of: KeysOf) -> LookedUp:
        """Read URL memos and the cached parts that follow from them. Refreshes the last use of these.

        The keys are derived from the memos that were read last time, so one round trip is enough while these
        have not changed. New or changed memos take a second one. Nothing is removed, and no hit is counted.
        """
        looked = LookedUp([self._memos.last(key) for key in source_keys])
        asked = keys_of(looked.memos)
        texts = await self._read(source_keys, asked, looked)
        memos = [self._memos.parse(key, text) for key, text in zip(source_keys, texts, strict=True)]
        if memos != looked.memos:
            looked.memos = memos
            known = set(asked)
            await self._read([], [key for key in keys_of(memos) if key not in known], looked)
        return looked

    async def create(self, record: JobRecord, done: Sequence[tuple[PartId, CachedPart]]) -> None:
        """Write a job whose parts are all cached, and count them as hits. One round trip."""
        texts = [(part_id, part.text, True) for part_id, part in done]
        job = create_command(record, texts, job_ttl=self._job_ttl)
        await self._connection.pipe([job, count_hits_command(len(done))])

    async def close(self) -> None:
        """Close the connection. Call this on the loop that used it; a later call connects again."""
        await self._connection.close()

    async def _read(
        self, source_keys: Sequence[str], keys: Sequence[str], looked: LookedUp
    ) -> list[str | None]:
        """Read the texts of memos, and add to ``looked`` what the cache has of the keys."""
        commands: list[Command] = []
        if source_keys:
            commands.append(("MGET", *map(redis_keys.source, source_keys)))
        if keys:
            args: list[Argument] = [self._tiers, 0, 0, "", *keys]
            commands.append(script_command(Script.LOOKUP, [], args))
        answers = await self._connection.pipe(commands) if commands else []
        if keys:
            await self._add_parts(keys, answers[-1], looked)
        return answers[0] if source_keys else []

    async def _add_parts(self, keys: Sequence[str], rows: Sequence[Any], looked: LookedUp) -> None:
        """Check the rows of the script ``lookup``: entry, whether it is in L1, checksum, entry, ..."""
        for number, (key, text, in_l1) in enumerate(zip(keys, rows[::3], rows[1::3], strict=True), start=1):
            part = self._parts.part(key, text) if text and in_l1 else None
            if part is not None:
                looked.parts[key] = part
            elif text is not None:
                looked.unsure.append(key)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _card(self, encoder: str) -> EncoderCard | None:
        known = self._cards.get(encoder)
        return None if known is None else known[1]

    def _has_fresh_card(self, encoder: str, now: float) -> bool:
        known = self._cards.get(encoder)
        return known is not None and now - known[0] < CARD_SECONDS

    def _keep_card(self, encoder: str, card: EncoderCard | None, now: float) -> None:
        """Keep a card. An equal one stays the same object, which makes comparing it cheap."""
        known = self._card(encoder)
        if card is None:
            self._cards.pop(encoder, None)
        else:
            self._cards[encoder] = (now, known if known is not None and known == card else card)


class _MemoMemory:
    """The URL memos that were read last, by source key, so that each text is parsed once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, SourceMemo | None]] = {}

    def last(self, source_key: str) -> SourceMemo | None:
        """The memo that was read last."""
        known = self._known.get(source_key)
        return None if known is None else known[1]

    def parse(self, source_key: str, text: str | None) -> SourceMemo | None:
        """The memo of a text, which becomes the last one. The least recently used memo is dropped."""
        known = self._known.pop(source_key, None)
        if text is None:
            return None
        if known is None or known[0] != text:
            known = (text, read_record(SourceMemo, text))
        self._known[source_key] = known
        if len(self._known) > MEMOS:
            del self._known[next(iter(self._known))]
        return known[1]


class PartMemory:
    """The parts that were checked last: each is checked once while its text and its file stay the same."""

    def __init__(self, folder: EmbeddingFolder, *, limit: int = ENTRIES) -> None:
        """Keep ``limit`` parts of a folder (L1)."""
        self._folder = folder
        self._known = lru_cache(limit)(self._checked)

    def part(self, key: str, text: str) -> CachedPart | None:
        """The finished part of an index entry; None if the entry or its file cannot be used."""
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
