"""The index of embeddings on a server, over the files of one folder.

The folder has to be the same for all who share the server: an entry whose file is not found is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epd.contracts.metadata import EmbeddingRef, Entry
from epd.store import keys as names
from epd.store.base import StoreStats
from epd.store.clock import milliseconds
from epd.store.embedding_folder import EmbeddingFolder
from epd.store.entry_check import checked_entry
from epd.store.redis.connection import Connection
from epd.store.redis.scripts import Script


class RedisEmbeddings:
    """``Embeddings`` on a server."""

    def __init__(self, connection: Connection, folder: EmbeddingFolder, *, limit: int) -> None:
        """``limit`` is the byte bound that ``stats`` shows; ``RedisFlights.complete`` holds it."""
        self._connection = connection
        self._folder = folder
        self._limit = limit

    def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Entries in the order of the keys; what cannot be used is removed and counts as a miss."""
        if not keys:
            return []
        texts = self._connection.run(Script.LOOKUP, [], keys)
        found: list[Entry | None] = []
        bad: list[str] = []
        for key, ref, metadata in zip(keys, texts[::2], texts[1::2], strict=True):
            present = ref is not None or metadata is not None
            entry = checked_entry(key, ref, metadata, self._folder) if present else None
            if present and entry is None:
                bad.append(key)
            found.append(entry)
        self.remove(bad)
        return found

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies."""
        return self._folder.path(key)

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file once; a good file that is there already is kept."""
        self._folder.publish(ref, data, header)

    def remove(self, keys: Sequence[str]) -> int:
        """Drop entries, index first and file second."""
        if not keys:
            return 0
        count = int(self._connection.run(Script.REMOVE, [], keys))
        for key in keys:
            self._folder.remove(key)
        return count

    def pin(self, keys: Sequence[str], seconds: float) -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none."""
        if not keys:
            return []
        pinned = self._connection.run(Script.PIN, [], (milliseconds(seconds), *keys))
        return [bool(there) for there in pinned]

    def stats(self) -> StoreStats:
        """Entries and bytes in the index."""
        entries, nbytes = self._connection.pipe([("ZCARD", names.LRU), ("GET", names.LRU_BYTES)])
        return StoreStats(entries=entries, nbytes=int(nbytes or 0), limit=self._limit)

    def sweep(self, older_than: float) -> int:
        """Remove old files that no entry names."""
        stale = self._folder.untouched(older_than)
        if not stale:
            return 0
        scores, pins = self._connection.pipe(
            [("ZMSCORE", names.LRU, *stale), ("MGET", *(names.pin(key) for key in stale))]
        )
        rows = zip(stale, scores, pins, strict=True)
        unknown = [key for key, score, pin in rows if score is None and pin is None]
        return sum(self._folder.remove(key) for key in unknown)
