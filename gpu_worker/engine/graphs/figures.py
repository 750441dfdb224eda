"""What the graph runner counts for each encoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GraphFigures:
    """Totals since the start.

    ``hits`` were replayed; ``misses`` fit no captured bucket; ``declined`` fit one, and padding up to it
    would have cost more than it saved. ``units`` are those of the hits, ``padding`` what was added to them.
    ``graphs`` were captured at the start, and took ``memory`` bytes of the device with their buffers.
    """

    graphs: int = 0
    memory: int = 0
    hits: int = 0
    misses: int = 0
    declined: int = 0
    units: int = 0
    padding: int = 0

    @property
    def padding_share(self) -> float:
        """Padding as a part of all units that were replayed; 0 before the first."""
        return self.padding / (self.units + self.padding) if self.padding else 0.0
