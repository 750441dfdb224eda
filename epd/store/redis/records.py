"""Small records on a server: encoder cards, the URL memo, heartbeats and uploads. One key each."""

from __future__ import annotations

from collections.abc import Sequence

from epd.contracts.card import EncoderCard
from epd.store import keys
from epd.store.clock import milliseconds
from epd.store.redis.connection import Connection
from epd.store.redis.reading import read_record
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

    def __init__(self, connection: Connection, *, ttl: float, sound_ttl: float) -> None:
        """Memos live ``ttl`` seconds: longer than the embedding they lead to is of no use."""
        self._connection = connection
        self._ttl_ms = milliseconds(ttl)
        self._sound_ttl_ms = milliseconds(sound_ttl)

    def get(self, source_key: str) -> SourceMemo | None:
        """What is known of a URL's content, or None."""
        return read_record(SourceMemo, self._connection.call("GET", keys.source(source_key)))

    def put(self, source_key: str, memo: SourceMemo) -> None:
        """Remember what is known of a URL's content."""
        self._connection.call("SET", keys.source(source_key), memo.to_json(), "PX", self._ttl_ms)

    def sound(self, digest: str) -> bool | None:
        """Whether a video's bytes have sound; None where no decoder has looked lately."""
        text = self._connection.call("GET", keys.sound(digest))
        return None if text is None else text == "1"

    def note_sound(self, digest: str, present: bool) -> None:
        """Remember whether they have, for about as long as a job may take."""
        self._connection.call("SET", keys.sound(digest), "1" if present else "0", "PX", self._sound_ttl_ms)


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
