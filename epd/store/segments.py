"""The index of segments: where the rows of a window of sound, or of a group of frames, lie already.

A segment is a part of an item whose rows depend on nothing else (``epd.identity.segment_key``). Its rows are
not stored a second time: a place names them inside the embedding of an item that holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Rows [start, start + rows) of the embedding ``parent``; ``checksum`` is the crc32 of their bytes."""

    parent: str
    start: int
    rows: int
    checksum: int


class Segments(Protocol):
    """Places by segment key. Bounded in number: what is over is dropped, whichever it is.

    A place may be wrong by the time it is read, because its parent is gone: who reads it checks.
    """

    def find(self, keys: Sequence[str]) -> list[SegmentPlace | None]:
        """Places in the order of the keys. One round trip."""
        ...

    def note(self, places: Mapping[str, SegmentPlace]) -> None:
        """Remember places, in the stead of what was known before. One round trip."""
        ...

    def count(self) -> int:
        """How many places are known."""
        ...
