"""The embedding cache: an index on the server over files in one or two tiers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from epd.contracts.embedding import EmbeddingRef, Entry
from epd.contracts.errors import NotFound
from epd.contracts.responses import Tier
from epd.store.cache.entry import read_entry
from epd.store.cache.index import EmbeddingIndex
from epd.store.cache.mover import Mover
from epd.store.files.embedding_format import EmbeddingFile
from epd.store.files.tiers import TierFiles
from epd.store.values import CacheEvent, CachePage, Indexed, Moved, StoreStats

logger = logging.getLogger(__name__)

#: Keys in one question to the index while files are swept. L2 may hold a million files.
_SWEPT_AT_ONCE = 512


class Embeddings:
    """Embedding files and their index. An entry contains the metadata, so both live and die together.

    Files lie in L1 (memory) and, if it is configured, in L2 (a disk or a shared file system). A hit is served
    from the tier that has the file; one in L2 alone has its checksum verified first. All processes that share
    an index must share its folders.
    """

    def __init__(self, index: EmbeddingIndex, files: TierFiles) -> None:
        self._index = index
        self._files = files
        self._mover = None if files.l2 is None else Mover(index, files.l1, files.l2)

    def lookup(
        self, keys: Sequence[str], *, counted: bool = False, lease: float = 0.0, holder: str = ""
    ) -> list[Entry | None]:
        """Look up embeddings, check their files, and refresh their last use. One round trip.

        Args:
            keys: Embedding keys.
            counted: Whether hits appear in the totals.
            lease: Seconds to pin what is found, as ``pin`` does; 0 for no pin.
            holder: The holder of these pins.

        Returns:
            Entries in the order of the keys; None is a miss. An entry without a good file is removed from
            the cache and is a miss.
        """
        if not keys:
            return []
        indexed = self._index.read(keys, counted=counted, lease=lease, holder=holder)
        checked = self._check(keys, indexed)
        self._repair(checked)
        return checked.entries

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies; its place in L1 if it is in no tier."""
        return self._files.path(key)

    def open(self, key: str) -> tuple[EmbeddingFile, BinaryIO]:
        """Open the file of an embedding and read its header; raises ``NotFound`` if it is gone."""
        return self._files.open(key)

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write a file into L1 (temporary file, fsync, link). A good file that exists is kept."""
        self._files.l1.publish(ref, data, header)

    def remove(self, keys: Sequence[str]) -> int:
        """Remove entries, then their files. Returns how many entries there were."""
        count, _ = self._index.remove(keys)
        for key in keys:
            self._files.remove(key)
        return count

    def forget(self, keys: Sequence[str]) -> int:
        """Remove entries on an operator's request, and count this in the totals.

        The files of pinned entries stay readable while they are pinned, and are swept later.

        Returns:
            How many entries there were.
        """
        count, pinned = self._index.remove(keys)
        for key in set(keys).difference(pinned):
            self._files.remove(key)
        if count:
            self._index.count(CacheEvent.REMOVED, count)
        return count

    def pin(self, keys: Sequence[str], seconds: float, holder: str = "") -> list[bool]:
        """Protect embeddings from eviction and sweeping for some seconds. One round trip.

        A longer pin is not shortened. A damaged file is removed all the same. If all other embeddings are
        pinned, too, the least recently used one is evicted to make room for a new one.

        Returns:
            For each key False if there is no such embedding.
        """
        return self._index.pin(keys, seconds, holder) if keys else []

    def unpin(self, keys: Sequence[str], holder: str) -> None:
        """End the pins of a holder now. A pin that had other holders, too, ends with its lease."""
        if keys:
            self._index.unpin(keys, holder)

    def scan(self, cursor: str | None = None, *, limit: int = 100) -> CachePage:
        """Return about ``limit`` entries from a cursor on.

        An entry that exists during the whole scan is returned at least once.
        """
        return self._index.scan(cursor, limit)

    def stats(self) -> StoreStats:
        """Return the sizes of the tiers, and the totals of events."""
        return self._index.stats()

    def move(self, seconds: float) -> Moved:
        """Move files between the tiers for about so many seconds; does nothing without L2.

        Call it from one thread of a process. Over the fleet a lease selects the mover.
        """
        return Moved() if self._mover is None else self._mover.move(seconds)

    def sweep(self, older_than: float) -> int:
        """Delete files that no entry names and that have not been written to for that many seconds.

        Returns:
            How many files were deleted.
        """
        return sum(self._sweep(tier, older_than) for tier in Tier)

    def _sweep(self, tier: Tier, older_than: float) -> int:
        folder, swept = self._files.folder(tier), 0
        if folder is None:
            return 0
        stale = folder.untouched(older_than)
        while keys := list(islice(stale, _SWEPT_AT_ONCE)):
            swept += sum(folder.remove(key) for key in self._index.unnamed(tier, keys))
        return swept

    def _check(self, keys: Sequence[str], indexed: Sequence[Indexed]) -> _Checked:
        """Check the entries of the index against their files.

        With two tiers the index is read again before an entry is given up: the file may just have moved.
        """
        checked = _Checked()
        for key, row in zip(keys, indexed, strict=True):
            entry = self._checked_entry(key, row, checked)
            if entry is None and self._files.tiers > 1 and row.text is not None:
                entry = self._checked_entry(key, self._index.read([key])[0], checked)
            if entry is None and row.text is not None:
                checked.bad.append(key)
            checked.entries.append(entry)
        return checked

    def _checked_entry(self, key: str, row: Indexed, checked: _Checked) -> Entry | None:
        """The entry of a row, whose file must be whole and have its key, shape and dtype.

        The contract's validators check that rows, grid and token count agree.
        """
        if row.text is None:
            return None
        try:
            entry = read_entry(key, row.text)
            if not self._files.check(entry.ref, row):
                checked.lost.append(key)
        except (ValueError, NotFound) as error:
            logger.warning("embedding %s is a miss: %s", key, error)
            return None
        return entry

    def _repair(self, checked: _Checked) -> None:
        """Remove from the index what has no good file, then delete what is left of the files."""
        if checked.lost:
            self._index.leave(Tier.L1, checked.lost)
        if checked.bad:
            self._index.remove(checked.bad)
        corrupt = sum(self._files.l1.remove(key) for key in checked.lost)
        corrupt += sum(self._files.remove(key) > 0 for key in checked.bad)
        if corrupt:
            self._index.count(CacheEvent.CORRUPT, corrupt)


@dataclass(slots=True)
class _Checked:
    """Entries in the order of their keys. ``bad`` have no good file; ``lost`` have lost the one in L1."""

    entries: list[Entry | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
