"""The protocol behind answers from the cache: what such an answer takes of the store, for an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from epd.contracts.card import EncoderCard
from epd.contracts.job import JobRecord, PartId
from epd.contracts.metadata import Entry
from epd.store.values import SourceMemo


@dataclass(frozen=True, slots=True)
class Facts:
    """Encoder cards and URL memos, each in the order in which they were asked for."""

    cards: Sequence[EncoderCard | None]
    memos: Sequence[SourceMemo | None]


@dataclass(frozen=True, slots=True)
class Guess:
    """A job whose parts all are done, if ``facts`` and the entries of ``done`` are still what they were.

    ``facts`` are those of ``encoders`` and ``source_keys``, in their order.
    """

    encoders: Sequence[str]
    source_keys: Sequence[str]
    facts: Facts
    record: JobRecord
    done: Mapping[PartId, Entry]


class Hits(Protocol):
    """No call blocks the loop; each that waits is one round trip and raises ``StoreUnavailable``."""

    def recalled(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts | None:
        """As ``facts`` last read them here, maybe long ago; None where one was missing, or never read."""
        ...

    def recalled_entries(self, keys: Sequence[str]) -> list[Entry | None]:
        """As ``lookup`` last found them here."""
        ...

    async def confirm(self, guess: Guess) -> bool:
        """Do all that ``facts``, ``lookup`` and ``create`` do, in one round trip; False: the guess is wrong.

        Then there is no such job. It is written before its grounds are known to be good, and taken back:
        where the process dies or the store fails between, a job is left, for its time, whose id nobody knows.
        """
        ...

    async def facts(self, encoders: Sequence[str], source_keys: Sequence[str]) -> Facts:
        """Cards by encoder name and memos by source key."""
        ...

    async def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Entries that are at hand, in the order of the keys; refreshes their last use.

        None is what ``Embeddings.lookup`` has to be asked for: it is missing, damaged, or takes time to read.
        """
        ...

    async def create(self, record: JobRecord, done: Mapping[PartId, Entry]) -> None:
        """Write a job whose parts all are done, with entries that were there, and count them as hits."""
        ...

    async def close(self) -> None:
        """Close the connection; called on the loop. A later call connects anew."""
        ...
