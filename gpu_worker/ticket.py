"""One encode message in this worker, from its delivery to its ack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from epd.contracts.job import PartId
from epd.contracts.messages import EncodeMessage
from gpu_worker.engine.slot import Slot
from gpu_worker.reuse.reuse import Reuse


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """``id`` is unique in this process, unlike the message, which may be delivered twice.

    ``asked_at`` (when the store last said that the part is wanted) and ``begun_at`` (when its batch was
    formed) are Unix seconds; 0 where that has not happened. ``reuse``: its segments, where it has any.
    """

    id: str
    message: EncodeMessage
    asked_at: float = 0.0
    begun_at: float = 0.0
    reuse: Reuse | None = None

    @property
    def part(self) -> PartId:
        """The part of the job that the message is to finish."""
        return PartId(self.message.item.index, self.message.wanted.track)

    def asked(self, at: float) -> Ticket:
        """The ticket with the store's word that it is wanted."""
        return replace(self, asked_at=at)

    def begun(self, at: float) -> Ticket:
        """The ticket with its batch formed."""
        return replace(self, begun_at=at)

    def slot(self, path: Path, now: float) -> Slot:
        """What the engine has to know; ``path`` is the raw blob's file."""
        message = self.message
        return Slot(
            id=self.id,
            encoder=message.wanted.encoder,
            raw=message.raw,
            path=path,
            options=message.item.options,
            priority=message.priority,
            deadline=message.deadline,
            enqueued=now,
            piece=None if self.reuse is None else self.reuse.piece,
        )
