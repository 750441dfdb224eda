"""The line of a scenario: what was accepted, what became of it, how fast it went on."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

#: Reasons that one line shows.
_MOST_REASONS = 8


@dataclass
class Line:
    """One scenario's outcome. ``recovery_s`` is the median of ``recoveries_s``, None without any."""

    scenario: str
    seed: int
    server: str
    submitted: int
    completed: int
    failed: dict[str, int]
    lost: int
    duplicated: int
    recovery_s: float | None
    recoveries_s: list[float]
    seconds: float
    ok: bool
    settings: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """One line of JSON."""
        fields = asdict(self)
        facts = fields.pop("facts")
        why = fields.pop("why")[:_MOST_REASONS]
        return json.dumps({**fields, **facts, "why": why})


def median(values: list[float]) -> float | None:
    """The median, rounded to milliseconds."""
    return round(statistics.median(values), 3) if values else None
