"""Embeddings of one process: the index in memory, the files in a folder as on the server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from epd.contracts.metadata import EmbeddingRef, Entry
from epd.store.base import StoreStats
from epd.store.embedding_folder import EmbeddingFolder
from epd.store.entry_check import checked_entry
from epd.store.memory.index import MemoryIndex
from epd.store.memory.state import MemoryState


class MemoryEmbeddings:
    """``Embeddings`` over shared memory state."""

    def __init__(self, state: MemoryState, index: MemoryIndex, folder: EmbeddingFolder) -> None:
        """Share the index with the flights."""
        self._state = state
        self._index = index
        self._folder = folder

    def lookup(self, keys: Sequence[str]) -> list[Entry | None]:
        """Entries in the order of the keys; what cannot be used is removed and counts as a miss."""
        with self._state.lock:
            texts = [self._index.texts(key) for key in keys]
        found = [
            None if text is None else checked_entry(key, text.ref, text.metadata, self._folder)
            for key, text in zip(keys, texts, strict=True)
        ]
        rows = zip(keys, texts, found, strict=True)
        self.remove([key for key, text, entry in rows if text is not None and entry is None])
        return found

    def path(self, key: str) -> Path:
        """Where the file of an embedding lies."""
        return self._folder.path(key)

    def publish_file(self, ref: EmbeddingRef, data: memoryview, header: dict[str, str]) -> None:
        """Write the file once; a good file that is there already is kept."""
        self._folder.publish(ref, data, header)

    def remove(self, keys: Sequence[str]) -> int:
        """Drop entries, index first and file second."""
        with self._state.lock:
            gone = [self._state.entries.pop(key, None) for key in keys]
        for key in keys:
            self._folder.remove(key)
        return sum(entry is not None for entry in gone)

    def pin(self, keys: Sequence[str], seconds: float) -> list[bool]:
        """Keep embeddings from being evicted or swept for that long; False where there is none."""
        now = time.time()
        end = now + seconds
        with self._state.lock:
            self._state.pins = {key: until for key, until in self._state.pins.items() if until > now}
            there = [self._index.has(key) for key in keys]
            for key in itertools.compress(keys, there):
                self._state.pins[key] = max(end, self._state.pins.get(key, 0.0))
        return there

    def stats(self) -> StoreStats:
        """Entries and bytes in the index."""
        with self._state.lock:
            return StoreStats(
                entries=len(self._state.entries), nbytes=self._index.nbytes, limit=self._index.limit
            )

    def sweep(self, older_than: float) -> int:
        """Remove old files that no entry names."""
        stale = self._folder.untouched(older_than)
        with self._state.lock:
            unknown = [
                key for key in stale if key not in self._state.entries and not self._state.is_pinned(key)
            ]
        return sum(self._folder.remove(key) for key in unknown)
