"""Places of segments in one process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from epd.store.memory.records import ExpiringMap
from epd.store.segments import SegmentPlace

_ALL = "all"


class MemorySegments:
    """``Segments`` in one process; the bound drops the oldest."""

    def __init__(self, *, most: int, ttl: float) -> None:
        """At most ``most`` places; all are forgotten when none was noted for ``ttl`` seconds."""
        self._most = most
        self._lock = threading.Lock()
        self._held: ExpiringMap[dict[str, SegmentPlace]] = ExpiringMap(ttl)

    def find(self, keys: Sequence[str]) -> list[SegmentPlace | None]:
        """Places in the order of the keys."""
        places = self._held.get(_ALL) or {}
        return [places.get(key) for key in keys]

    def note(self, places: Mapping[str, SegmentPlace]) -> None:
        """Remember places; what is over the bound goes."""
        with self._lock:
            known = {**(self._held.get(_ALL) or {}), **places}
            self._held.put(_ALL, dict(list(known.items())[-self._most :]))

    def count(self) -> int:
        """How many places are known."""
        return len(self._held.get(_ALL) or {})
