"""The byte-bounded index of embeddings in one process: what ``lua/lib_lru.lua`` is on the server.

Callers hold the state's lock.
"""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet

from epd.contracts.metadata import Entry
from epd.store.memory.state import IndexEntry, MemoryState


class MemoryIndex:
    """Entries in the order of their last use."""

    def __init__(self, state: MemoryState, *, limit: int, ttl: float) -> None:
        """``limit`` is bytes over all entries, ``ttl`` the seconds that one lives."""
        self._state = state
        self.limit = limit
        self._ttl = ttl

    def has(self, key: str) -> bool:
        """Whether the entry is there."""
        return self.texts(key) is not None

    def texts(self, key: str) -> IndexEntry | None:
        """The entry as it was written, its last use refreshed."""
        entry = self._state.entries.get(key)
        if entry is None or entry.ends_at <= time.time():
            return None
        self._state.entries.move_to_end(key)
        return entry

    def put(self, entry: Entry) -> None:
        """Write an entry, or write it over."""
        ends_at = time.time() + self._ttl
        texts = IndexEntry(entry.ref.to_json(), entry.metadata.to_json(), entry.ref.nbytes, ends_at)
        self._state.entries[entry.ref.key] = texts
        self._state.entries.move_to_end(entry.ref.key)

    def evict(self, spare: AbstractSet[str]) -> list[str]:
        """Take the oldest out until within the limit; ``spare`` goes only when it alone is over it.

        Pinned ones stay.
        """
        evicted: list[str] = []
        for spare_turn in (False, True):
            for key in [key for key in self._state.entries if (key in spare) is spare_turn]:
                if self.nbytes <= self.limit:
                    return evicted
                if not self._state.is_pinned(key):
                    del self._state.entries[key]
                    evicted.append(key)
        return evicted

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.nbytes for entry in self._state.entries.values())
