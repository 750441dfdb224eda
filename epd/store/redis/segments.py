"""The index of segments: where the rows of a window of audio, or of a group of frames, lie already.

A segment is a part of an item whose rows depend on nothing else (``epd.identity.segment_key``). Its rows are
not stored a second time: a place names them inside the embedding of an item that holds them. The server keeps
one hash, with its keys in base64, which is shorter than hex.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from epd.store import keys as names
from epd.store.clock import milliseconds
from epd.store.redis.connection import Command, Connection
from epd.store.redis.scripts import Script

#: Places of one script call; a server takes some thousands of arguments at once.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Rows [start, start + rows) of the embedding ``parent``; ``checksum`` is the crc32 of their bytes."""

    parent: str
    start: int
    rows: int
    checksum: int


class Segments:
    """Places by segment key. Bounded in number: what is over the bound is dropped, whichever it is.

    A place may be wrong by the time it is read, because its parent is gone: the reader has to check it.
    """

    def __init__(self, connection: Connection, *, most: int, ttl: float) -> None:
        """At most ``most`` places; all are forgotten when none was noted for ``ttl`` seconds."""
        self._connection = connection
        self._most = most
        self._ttl_ms = milliseconds(ttl)

    def find(self, keys: Sequence[str]) -> list[SegmentPlace | None]:
        """Places in the order of the keys. One round trip."""
        if not keys:
            return []
        texts = self._connection.call("HMGET", names.SEGMENTS, *map(_short, keys))
        return [None if text is None else _place(text) for text in texts]

    def note(self, places: Mapping[str, SegmentPlace]) -> None:
        """Remember places; a newer one replaces an older one. One round trip."""
        pairs = [(_short(key), _text(place)) for key, place in places.items()]
        commands: list[Command] = [
            self._connection.script_command(
                Script.SEGMENTS_NOTE,
                [names.SEGMENTS],
                (self._most, self._ttl_ms, *chain.from_iterable(pairs[at : at + _AT_ONCE])),
            )
            for at in range(0, len(pairs), _AT_ONCE)
        ]
        if commands:
            self._connection.pipe(commands)

    def count(self) -> int:
        """How many places are known."""
        return int(self._connection.call("HLEN", names.SEGMENTS))


def _short(key: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(key)).rstrip(b"=").decode()


def _text(place: SegmentPlace) -> str:
    return f"{_short(place.parent)}.{place.start}.{place.rows}.{place.checksum:x}"


def _place(text: str) -> SegmentPlace | None:
    """None for what another version of the code may have written."""
    try:
        parent, start, rows, checksum = text.split(".")
        return SegmentPlace(urlsafe_b64decode(f"{parent}=").hex(), int(start), int(rows), int(checksum, 16))
    except ValueError:
        return None
