"""What became of one encode message: told to whoever delivered it, so that it can be acked and reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from epd.contracts.errors import EpdError


class Fate(StrEnum):
    """How a message ended. All but ``FAILED`` are no fault of the item."""

    ENCODED = "encoded"
    FAILED = "failed"
    REFETCHED = "refetched"  #: its blob or encoder is gone, so the item was sent back to ``fetch``
    EXPIRED = "expired"
    CANCELLED = "cancelled"  #: nobody waits for this part any more


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of one ticket. ``summary`` is what operators see of it; ``error`` is set when it failed."""

    ticket_id: str
    fate: Fate
    summary: dict[str, str | int | float] = field(default_factory=dict)
    error: EpdError | None = None

    @property
    def text(self) -> str:
        """The summary as one line: ``key=... tokens=257 forward_s=0.012``."""
        return " ".join(f"{name}={value}" for name, value in self.summary.items())
