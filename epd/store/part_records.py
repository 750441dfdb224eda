"""The final part records that the store itself makes when a flight ends."""

from __future__ import annotations

from collections.abc import Mapping

from epd.contracts.job import PartRecord, State
from epd.contracts.metadata import Entry


def done_record(entry: Entry, timings: Mapping[str, float] | None = None) -> PartRecord:
    """A part that has its embedding; ``timings`` in seconds belong to the part that made it alone."""
    return PartRecord(
        state=State.DONE, ref=entry.ref, metadata=entry.metadata, timings=dict(timings) if timings else {}
    )
