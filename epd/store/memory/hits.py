"""What an answer from the cache takes of a store in this process: its other parts, asked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epd.contracts.job import JobRecord, PartId, PartRecord
from epd.contracts.metadata import Entry
from epd.store.base import Cards, Embeddings, Jobs, Sources
from epd.store.hits import Facts, Guess


class MemoryHits:
    """``Hits`` over parts that never block."""

    def __init__(self, *, cards: Cards, sources: Sources, embeddings: Embeddings, jobs: Jobs) -> None:
        """Ask these."""
        self._cards = cards
        self._sources = sources
        self._embeddings = embeddings
        self._jobs = jobs

    def recalled(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts | None:
        """As they are: to ask costs nothing."""
        facts = self._facts(encoders, source_keys)
        return None if None in facts.cards or None in facts.memos else facts

    def recalled_entries(self, keys: Sequence[str]) -> list[Entry | None]:
        """As they are."""
        return self._embeddings.lookup(keys)

    async def confirm(self, guess: Guess) -> bool:
        """Write the job if its grounds still stand."""
        entries = self._embeddings.lookup([entry.ref.key for entry in guess.done.values()])
        facts = self._facts(guess.encoders, guess.source_keys)
        if facts != guess.facts or entries != list(guess.done.values()):
            return False
        await self.create(guess.record, guess.done)
        return True

    async def facts(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts:
        """Cards by encoder name and memos by source key."""
        return self._facts(encoders, source_keys)

    def _facts(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts:
        return Facts(self._cards.get(encoders), [self._sources.get(key) for key in source_keys])

    async def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Entries in the order of the keys."""
        return self._embeddings.lookup(keys)

    async def create(self, record: JobRecord, done: Mapping[PartId, Entry]) -> None:
        """Write a job whose parts all are done, and count its hits."""
        self._embeddings.lookup([entry.ref.key for entry in done.values()], counted=True)
        parts = {part: PartRecord.done(entry, cached=True) for part, entry in done.items()}
        self._jobs.create(record, parts)

    async def close(self) -> None:
        """There is no connection."""
