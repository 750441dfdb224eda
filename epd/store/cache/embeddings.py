"""The embedding cache: an index on the server over files in one or two folders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from epd.contracts.embedding import EmbeddingRef, Entry
from epd.contracts.responses import Tier
from epd.store.cache.entry import Checked, check_entries
from epd.store.cache.index import EmbeddingIndex
from epd.store.cache.mover import Mover
from epd.store.files.embedding_file import EmbeddingFile
from epd.store.files.tiers import TierFiles
from epd.store.values import CacheEvent, CachePage, Moved, StoreStats

#: Keys that the index is asked of in one call while files are swept: a second tier may hold a million.
_SWEPT_AT_ONCE = 512


class Embeddings:
    """Embedding files and their index. An entry holds the metadata, so both live and die together.

    Files lie in one or two tiers: L1 in memory, L2 on a disk or a shared file system. A hit is served from
    where its file lies; one that lies in L2 alone is checked whole before it counts. The folders have to be
    the same for all who share the index.
    """

    def __init__(self, index: EmbeddingIndex, files: TierFiles) -> None:
        """Nothing is read or made yet."""
        self._index = index
        self._files = files
        self._mover = None if files.l2 is None else Mover(index, files.l1, files.l2)

    def lookup(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Entry | None]:
        """Entries in the order of the keys; None is a miss. Refreshes last use. One round trip.

        What cannot be used is removed and counts as a miss. With ``counted``, hits appear in the totals.
        With a ``lease`` (seconds), what is there is pinned as ``pin`` does for a ``holder``.
        """
        if not keys:
            return []
        known = self._index.read(keys, counted=counted, lease=lease, holder=holder)
        checked = check_entries(keys, known, self._files, self._index.read)
        self._mend(checked)
        return checked.entries

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies; its place in L1 where it lies nowhere."""
        return self._files.path(key)

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """An embedding's file, held open, and what its header says; raises ``NotFound`` when it is gone."""
        return self._files.open(key)

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file into L1 once (temporary file, fsync, link); a good one that is there is kept."""
        self._files.l1.publish(ref, data, header)

    def remove(self, keys: Sequence[str]) -> int:
        """Drop entries with their files, index first and files second; returns how many there were."""
        count, _ = self._index.remove(keys)
        for key in keys:
            self._files.remove(key)
        return count

    def forget(self, keys: Sequence[str]) -> int:
        """Drop entries that an operator takes out, and return how many there were.

        The file of a pinned one stays readable for its lease, and is swept after it.
        """
        count, pinned = self._index.remove(keys)
        for key in set(keys).difference(pinned):
            self._files.remove(key)
        if count:
            self._index.count(CacheEvent.REMOVED, count)
        return count

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Keep embeddings from being evicted or swept for so many seconds; False where there is none.

        A longer pin is not shortened. What is damaged is removed all the same. Where all others are pinned
        too, the one used least recently is evicted for a new one. One round trip.
        """
        return self._index.pin(keys, seconds, holder) if keys else []

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End the pins of a holder now; one that somebody else held in the meantime ends by itself."""
        if keys:
            self._index.unpin(keys, holder)

    def scan(self, cursor: str | None = None, *, limit: int = 100) -> CachePage:
        """About ``limit`` entries from a cursor on. One that stays all the time is returned at least once."""
        return self._index.scan(cursor, limit)

    def stats(self) -> StoreStats:
        """Sizes of the tiers, and what happened in them."""
        return self._index.stats()

    def move(self, seconds: float) -> Moved:
        """Move files between the tiers for about so many seconds; one thread of the fleet at a time.

        Does nothing with one tier.
        """
        return Moved() if self._mover is None else self._mover.move(seconds)

    def sweep(self, older_than: float) -> int:
        """Remove files that no entry names and nobody touched for that many seconds; returns how many."""
        return sum(self._sweep(tier, older_than) for tier in Tier)

    def _sweep(self, tier: Tier, older_than: float) -> int:
        folder, swept = self._files.folder(tier), 0
        if folder is None:
            return 0
        stale = folder.untouched(older_than)
        while keys := list(islice(stale, _SWEPT_AT_ONCE)):
            swept += sum(folder.remove(key) for key in self._index.unnamed(tier, keys))
        return swept

    def _mend(self, checked: Checked) -> None:
        """Have the index forget what its files do not bear out, and delete what is left of these."""
        if checked.lost:
            self._index.leave(Tier.L1, checked.lost)
        if checked.bad:
            self._index.remove(checked.bad)
        corrupt = sum(self._files.l1.remove(key) for key in checked.lost)
        corrupt += sum(self._files.remove(key) > 0 for key in checked.bad)
        if corrupt:
            self._index.count(CacheEvent.CORRUPT, corrupt)
