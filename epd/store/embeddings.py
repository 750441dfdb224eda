"""The embedding cache: an index in Redis (or in this process) over files in one or two folders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from epd.contracts.cache import Tier
from epd.contracts.metadata import EmbeddingRef, Entry
from epd.store.embedding_file import EmbeddingFile
from epd.store.entry_check import Checked, check_entries
from epd.store.index import EmbeddingIndex
from epd.store.mover import Mover
from epd.store.tier_files import TierFiles
from epd.store.values import CacheEvent, CachePage, Moved, StoreStats

#: Keys that the index is asked of in one call while files are swept: a second tier may hold a million.
_SWEPT_AT_ONCE = 512


class FileEmbeddings:
    """``Embeddings``. The folders have to be the same for all who share the index."""

    def __init__(self, index: EmbeddingIndex, files: TierFiles) -> None:
        """Nothing is read or made yet."""
        self._index = index
        self._files = files
        self._mover = None if files.l2 is None else Mover(index, files.l1, files.l2)

    def lookup(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Entry | None]:
        """Entries in the order of the keys; what cannot be used is removed and counts as a miss."""
        if not keys:
            return []
        known = self._index.read(keys, counted=counted, lease=lease, holder=holder)
        checked = check_entries(keys, known, self._files, self._index.read)
        self._mend(checked)
        return checked.entries

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies; in L1 where it lies nowhere."""
        return self._files.path(key)

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """The file of an embedding, held open for reading, and what its header says."""
        return self._files.open(key)

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file into L1 once; a good file that is there already is kept."""
        self._files.l1.publish(ref, data, header)

    def remove(self, keys: Sequence[str]) -> int:
        """Drop entries with their files, index first and files second."""
        count, _ = self._index.remove(keys)
        for key in keys:
            self._files.remove(key)
        return count

    def forget(self, keys: Sequence[str]) -> int:
        """Drop entries; the files of pinned ones stay until the sweep after their lease."""
        count, pinned = self._index.remove(keys)
        for key in set(keys).difference(pinned):
            self._files.remove(key)
        if count:
            self._index.count(CacheEvent.REMOVED, count)
        return count

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none."""
        return self._index.pin(keys, seconds, holder) if keys else []

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End the pins of a holder, where nobody else held them meanwhile."""
        if keys:
            self._index.unpin(keys, holder)

    def scan(self, cursor: str | None = None, *, limit: int = 100) -> CachePage:
        """About so many entries, and where the next ones begin."""
        return self._index.scan(cursor, limit)

    def stats(self) -> StoreStats:
        """Sizes and totals."""
        return self._index.stats()

    def move(self, seconds: float) -> Moved:
        """Move files between the tiers for at most about so long; nothing with one tier."""
        return Moved() if self._mover is None else self._mover.move(seconds)

    def sweep(self, older_than: float) -> int:
        """Remove old files that the index does not name."""
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
