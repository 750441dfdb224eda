"""Small records in one process: encoder cards, the URL memo, heartbeats and uploads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from epd.contracts.card import EncoderCard
from epd.store.base import Heartbeat, SourceMemo

Value = TypeVar("Value")


class ExpiringMap(Generic[Value]):
    """A thread-safe map whose values end ``ttl`` seconds after they were put; old ones go with each put."""

    def __init__(self, ttl: float) -> None:
        """Empty."""
        self._ttl = ttl
        self._lock = threading.Lock()
        self._values: dict[str, tuple[float, Value]] = {}

    def put(self, key: str, value: Value) -> None:
        """Set a value and start its life anew."""
        now = time.time()
        with self._lock:
            self._values = {name: pair for name, pair in self._values.items() if pair[0] > now}
            self._values[key] = (now + self._ttl, value)

    def get(self, key: str) -> Value | None:
        """A value that still lives."""
        return self.alive().get(key)

    def drop(self, key: str) -> None:
        """Forget a value."""
        with self._lock:
            self._values.pop(key, None)

    def alive(self) -> dict[str, Value]:
        """All values that still live."""
        now = time.time()
        with self._lock:
            return {name: value for name, (end, value) in self._values.items() if end > now}


class MemoryCards:
    """``Cards`` in one process."""

    def __init__(self) -> None:
        """No card yet."""
        self._cards: dict[str, EncoderCard] = {}

    def announce(self, card: EncoderCard) -> None:
        """Publish a card."""
        self._cards[card.name] = card

    def get(self, names: Sequence[str]) -> list[EncoderCard | None]:
        """Cards in the order of the names."""
        return [self._cards.get(name) for name in names]


class MemorySources:
    """``Sources`` in one process."""

    def __init__(self, *, ttl: float, sound_ttl: float) -> None:
        """Memos live ``ttl`` seconds."""
        self._memos: ExpiringMap[SourceMemo] = ExpiringMap(ttl)
        self._sounds: ExpiringMap[bool] = ExpiringMap(sound_ttl)

    def get(self, source_key: str) -> SourceMemo | None:
        """What is known of a URL's content."""
        return self._memos.get(source_key)

    def put(self, source_key: str, memo: SourceMemo) -> None:
        """Remember it."""
        self._memos.put(source_key, memo)

    def sound(self, digest: str) -> bool | None:
        """Whether a video's bytes have sound."""
        return self._sounds.get(digest)

    def note_sound(self, digest: str, present: bool) -> None:
        """Remember it."""
        self._sounds.put(digest, present)


class MemoryHeartbeats:
    """``Heartbeats`` in one process."""

    def __init__(self, *, ttl: float) -> None:
        """A beat counts ``ttl`` seconds."""
        self._beats: ExpiringMap[Heartbeat] = ExpiringMap(ttl)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Say that a worker lives."""
        self._beats.put(heartbeat.name, heartbeat)

    def leave(self, name: str) -> None:
        """A worker says goodbye."""
        self._beats.drop(name)

    def alive(self) -> list[Heartbeat]:
        """All workers whose last beat still counts, by name."""
        return [beat for _, beat in sorted(self._beats.alive().items())]


class MemoryUploads:
    """``UploadRecords`` in one process."""

    def __init__(self, *, ttl: float) -> None:
        """Records live ``ttl`` seconds after their last use."""
        self._sizes: ExpiringMap[int] = ExpiringMap(ttl)

    def remember(self, media_id: str, nbytes: int) -> None:
        """Record an upload."""
        self._sizes.put(media_id, nbytes)

    def renew(self, media_id: str) -> int | None:
        """Its size in bytes, its life renewed, or None."""
        size = self._sizes.get(media_id)
        if size is not None:
            self._sizes.put(media_id, size)
        return size
