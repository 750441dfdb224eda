"""Small records, most with a key of their own: encoder cards, URL memos, heartbeats, uploads, segments."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from epd.contracts.embedding import EncoderCard
from epd.store import keys
from epd.store.connection import Connection, read_record, script_command
from epd.store.keys import milliseconds
from epd.store.scripts import Script
from epd.store.values import Heartbeat, SourceMemo

#: Segment places in one script call. A server takes some thousands of arguments at once.
_PLACES_PER_CALL = 1000


class Cards:
    """Encoder cards, as GPU workers announce them. One per encoder of the config, without a TTL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def announce(self, card: EncoderCard) -> None:
        """Publish a card. It stays until another one of the same name replaces it."""
        self._connection.call("SET", keys.encoder(card.name), card.to_json())

    def get(self, names: Sequence[str]) -> list[EncoderCard | None]:
        """Return cards in the order of the names; None for an encoder that was never announced."""
        if not names:
            return []
        texts = self._connection.call("MGET", *map(keys.encoder, names))
        return [read_record(EncoderCard, text) for text in texts]


class Sources:
    """The URL memo, and which videos have an audio track."""

    def __init__(self, connection: Connection, *, ttl: float, audio_ttl: float) -> None:
        """A memo lives ``ttl`` seconds, which is how long the embedding lives that it leads to.

        What is known of a video's audio lives ``audio_ttl`` seconds.
        """
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)
        self._audio_ttl_ms = milliseconds(audio_ttl)

    def get(self, source_key: str) -> SourceMemo | None:
        """Return what is known of the content behind a URL."""
        return read_record(SourceMemo, self._connection.call("GET", keys.source(source_key)))

    def put(self, source_key: str, memo: SourceMemo) -> None:
        """Remember what is known of the content behind a URL."""
        self._connection.call("SET", keys.source(source_key), memo.to_json(), "PX", self._ttl_ms)

    def has_audio(self, digest: str) -> bool | None:
        """Whether a video has an audio track; None if no decoder has looked lately."""
        text = self._connection.call("GET", keys.audio_track(digest))
        return None if text is None else text == "1"

    def note_audio(self, digest: str, present: bool) -> None:
        """Remember whether a video has an audio track."""
        value = "1" if present else "0"
        self._connection.call("SET", keys.audio_track(digest), value, "PX", self._audio_ttl_ms)


class Heartbeats:
    """Signs of life of all workers. Reading removes dead workers; the set of names has a TTL too."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A heartbeat counts for ``ttl`` seconds."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Record that a worker is alive."""
        self._connection.pipe(
            [
                ("SET", keys.worker(heartbeat.name), heartbeat.to_json(), "PX", self._ttl_ms),
                ("SADD", keys.WORKERS, heartbeat.name),
                ("PEXPIRE", keys.WORKERS, 2 * self._ttl_ms),
            ]
        )

    def leave(self, name: str) -> None:
        """Record that a worker has stopped."""
        self._connection.pipe([("DEL", keys.worker(name)), ("SREM", keys.WORKERS, name)])

    def alive(self) -> list[Heartbeat]:
        """Return the last heartbeat of each live worker, by name."""
        names = sorted(self._connection.call("SMEMBERS", keys.WORKERS))
        if not names:
            return []
        texts = self._connection.call("MGET", *map(keys.worker, names))
        gone = [name for name, text in zip(names, texts, strict=True) if text is None]
        if gone:
            # A worker that beats at this moment adds its name again with its next beat.
            self._connection.call("SREM", keys.WORKERS, *gone)
        beats = [read_record(Heartbeat, text) for text in texts]
        return [beat for beat in beats if beat is not None]


class Uploads:
    """The sizes of uploads by media id: the ``UploadRecords`` of the blob folder."""

    def __init__(self, connection: Connection, *, ttl: float) -> None:
        """A record lives ``ttl`` seconds after its last use."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)

    def remember(self, media_id: str, nbytes: int) -> None:
        """Record an upload."""
        self._connection.call("SET", keys.media(media_id), nbytes, "PX", self._ttl_ms)

    def renew(self, media_id: str) -> int | None:
        """Return the size of an upload in bytes, or None, and renew its life."""
        size = self._connection.call("GETEX", keys.media(media_id), "PX", self._ttl_ms)
        return None if size is None else int(size)


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Rows [start, start + rows) of the embedding ``parent``. ``checksum`` is the crc32 of their bytes."""

    parent: str
    start: int
    rows: int
    checksum: int


class Segments:
    """The places of segments, by segment key. Their number is bounded; random ones are dropped.

    A place may be wrong when it is read, because its parent is gone. The reader has to check it.
    """

    def __init__(self, connection: Connection, *, most: int, ttl: float) -> None:
        """Keep at most ``most`` places, and forget all of them ``ttl`` seconds after the last ``note``."""
        self._connection = connection
        self._most = most
        self._ttl_ms = milliseconds(ttl)

    def find(self, segments: Sequence[str]) -> list[SegmentPlace | None]:
        """Return places in the order of the segment keys. One round trip."""
        if not segments:
            return []
        texts = self._connection.call("HMGET", keys.SEGMENTS, *map(_short, segments))
        return [None if text is None else _place(text) for text in texts]

    def note(self, places: Mapping[str, SegmentPlace]) -> None:
        """Remember places by segment key; a newer place replaces an older one. One round trip."""
        pairs = [(_short(segment), _text(place)) for segment, place in places.items()]
        limits = (self._most, self._ttl_ms)
        commands = [
            script_command(
                Script.SEGMENTS_NOTE,
                [keys.SEGMENTS],
                (*limits, *chain.from_iterable(pairs[start : start + _PLACES_PER_CALL])),
            )
            for start in range(0, len(pairs), _PLACES_PER_CALL)
        ]
        if commands:
            self._connection.pipe(commands)

    def count(self) -> int:
        """Return the number of known places."""
        return int(self._connection.call("HLEN", keys.SEGMENTS))


def _short(key: str) -> str:
    """A key in hex as 43 characters of base64."""
    return urlsafe_b64encode(bytes.fromhex(key)).rstrip(b"=").decode()


def _text(place: SegmentPlace) -> str:
    return f"{_short(place.parent)}.{place.start}.{place.rows}.{place.checksum:x}"


def _place(text: str) -> SegmentPlace | None:
    """The inverse of ``_text``; None for text that another version of the code wrote."""
    try:
        parent, start, rows, checksum = text.split(".")
        return SegmentPlace(urlsafe_b64decode(f"{parent}=").hex(), int(start), int(rows), int(checksum, 16))
    except ValueError:
        return None
