"""Handoffs in one process."""

from __future__ import annotations

import time
from dataclasses import dataclass

from epd.contracts.handoff import Handoff, HandoffRequest
from epd.contracts.job import Notice
from epd.store.handoffs import (
    StoredHandoff,
    body_text,
    checked,
    conflict,
    given_entry,
    joined,
    missing,
    notice_of,
)
from epd.store.memory.state import MemoryState


@dataclass(frozen=True, slots=True)
class _Held:
    body: str
    entries: tuple[str, ...]
    ends_at: float


class MemoryHandoffs:
    """``Handoffs`` over shared memory state."""

    def __init__(self, state: MemoryState, *, ttl: float) -> None:
        """A handoff lives ``ttl`` seconds after its last put."""
        self._state = state
        self._ttl = ttl
        self._held: dict[str, _Held] = {}
        self._waiting: dict[str, set[str]] = {}

    def put(self, request_id: str, request: HandoffRequest) -> StoredHandoff:
        """Keep a handoff with the metadata of its keys, and tell who waits."""
        body, now = body_text(request), time.time()
        with self._state.lock:
            self._held = {name: held for name, held in self._held.items() if held.ends_at > now}
            held = self._held.get(request_id)
            if held is not None and held.body != body:
                raise conflict()
            entries = self._entries(request) if held is None else held.entries
            handoff = checked(request_id, body, entries)
            self._held[request_id] = _Held(body, entries, now + self._ttl)
            self._publish(request_id)
        return StoredHandoff(handoff, created=held is None)

    def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """A handoff, or None; then its coming is put into the watcher's queue."""
        with self._state.lock:
            held = self._held.get(request_id)
            if held is not None and held.ends_at > time.time():
                return joined(request_id, held.body, held.entries)
            if watcher is not None:
                self._waiting.setdefault(request_id, set()).add(watcher)
            return None

    def remove(self, request_id: str) -> bool:
        """Forget a handoff."""
        with self._state.lock:
            return self._held.pop(request_id, None) is not None

    def _entries(self, request: HandoffRequest) -> tuple[str, ...]:
        """The index entries of all items, from the index or from the request."""
        now = time.time()
        known = {key: entry.text for key, entry in self._state.entries.items() if entry.ends_at > now}
        given = [given_entry(item) for item in request.items]  # refused even where it is not needed
        texts = [known.get(item.key) or text for item, text in zip(request.items, given, strict=True)]
        gone = [item.key for item, text in zip(request.items, texts, strict=True) if not text]
        if gone:
            raise missing(list(dict.fromkeys(gone)))
        return tuple(texts)

    def _publish(self, request_id: str) -> None:
        for watcher in self._waiting.pop(request_id, ()):
            if watcher in self._state.notices:
                self._state.notices[watcher].append(Notice.from_json(notice_of(request_id)))
        self._state.published.notify_all()


class MemoryHandoffLooks:
    """``HandoffLooks`` over handoffs that never block."""

    def __init__(self, handoffs: MemoryHandoffs) -> None:
        """Ask these."""
        self._handoffs = handoffs

    async def get(self, request_id: str, watcher: str | None = None) -> Handoff | None:
        """A handoff, or None; then its coming is put into the watcher's queue."""
        return self._handoffs.get(request_id, watcher)
