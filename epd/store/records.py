"""Small records on a server: encoder cards, the URL memo, heartbeats and uploads. One key each."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from epd.contracts.embedding import EncoderCard
from epd.store import keys
from epd.store import keys as names
from epd.store.connection import Command, Connection, read_record
from epd.store.keys import milliseconds
from epd.store.scripts import Script
from epd.store.values import Heartbeat, SourceMemo


class Cards:
    """Encoder cards, as announced by GPU workers."""

    def __init__(self, connection: Connection) -> None:
        """Cards stay until they are replaced: one an encoder of the config."""
        self._connection = connection

    def announce(self, card: EncoderCard) -> None:
        """Publish a card; it stays until another of that name replaces it."""
        self._connection.call("SET", keys.encoder(card.name), card.to_json())

    def get(self, names: Sequence[str]) -> list[EncoderCard | None]:
        """Cards in the order of the names."""
        if not names:
            return []
        texts = self._connection.call("MGET", *map(keys.encoder, names))
        return [read_record(EncoderCard, text) for text in texts]


class Sources:
    """The URL memo, and which videos have sound."""

    def __init__(self, connection: Connection, *, ttl: float, audio_ttl: float) -> None:
        """Memos live ``ttl`` seconds: longer than the embedding they lead to is of no use."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)
        self._audio_ttl_ms = milliseconds(audio_ttl)

    def get(self, source_key: str) -> SourceMemo | None:
        """What is known of a URL's content, or None."""
        return read_record(SourceMemo, self._connection.call("GET", keys.source(source_key)))

    def put(self, source_key: str, memo: SourceMemo) -> None:
        """Remember what is known of a URL's content."""
        self._connection.call("SET", keys.source(source_key), memo.to_json(), "PX", self._ttl_ms)

    def has_audio(self, digest: str) -> bool | None:
        """Whether a video's bytes have sound; None where no decoder has looked lately."""
        text = self._connection.call("GET", keys.audio_track(digest))
        return None if text is None else text == "1"

    def note_audio(self, digest: str, present: bool) -> None:
        """Remember whether they have, for about as long as a job may take."""
        value = "1" if present else "0"
        self._connection.call("SET", keys.audio_track(digest), value, "PX", self._audio_ttl_ms)


class Heartbeats:
    """Signs of life of every worker. The set of names prunes itself on read and ends with the last worker."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A beat counts ``ttl`` seconds."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Say that a worker lives; it counts for ``heartbeat_ttl`` seconds."""
        self._connection.pipe(
            [
                ("SET", keys.worker(heartbeat.name), heartbeat.to_json(), "PX", self._ttl_ms),
                ("SADD", keys.WORKERS, heartbeat.name),
                ("PEXPIRE", keys.WORKERS, 2 * self._ttl_ms),
            ]
        )

    def leave(self, name: str) -> None:
        """A worker says goodbye."""
        self._connection.pipe([("DEL", keys.worker(name)), ("SREM", keys.WORKERS, name)])

    def alive(self) -> list[Heartbeat]:
        """All workers whose last beat still counts, by name."""
        names = sorted(self._connection.call("SMEMBERS", keys.WORKERS))
        if not names:
            return []
        texts = self._connection.call("MGET", *map(keys.worker, names))
        gone = [name for name, text in zip(names, texts, strict=True) if text is None]
        if gone:
            # A worker that beats in between is back in the set with its next beat.
            self._connection.call("SREM", keys.WORKERS, *gone)
        beats = [read_record(Heartbeat, text) for text in texts]
        return [beat for beat in beats if beat is not None]


class Uploads:
    """The size of each upload, by media id: the ``UploadRecords`` of the blob folder."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """Records live ``ttl`` seconds after their last use."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def remember(self, media_id: str, nbytes: int) -> None:
        """Record an upload."""
        self._connection.call("SET", keys.media(media_id), nbytes, "PX", self._ttl_ms)

    def renew(self, media_id: str) -> int | None:
        """Its size in bytes, its life renewed, or None."""
        size = self._connection.call("GETEX", keys.media(media_id), "PX", self._ttl_ms)
        return None if size is None else int(size)


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
