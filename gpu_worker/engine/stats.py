"""Figures of the engine since its start, for heartbeats and ``inspect stats``."""

from __future__ import annotations

import threading
from collections import Counter


class EngineStats:
    """Counts batches and items. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._largest = 0

    def add_batch(self, encoder: str, items: int) -> None:
        """One forward that gave rows for this many items."""
        with self._lock:
            self._counts.update(
                {"batches": 1, "items": items, f"batches.{encoder}": 1, f"items.{encoder}": items}
            )
            self._largest = max(self._largest, items)

    def add(self, name: str, amount: int = 1) -> None:
        """Count an event: ``failed``, ``expired``, ``cancelled`` items or ``retried_batches``."""
        with self._lock:
            self._counts[name] += amount

    def snapshot(self) -> dict[str, float]:
        """All figures by name, with ``batch_max`` and ``batch_mean`` in items."""
        with self._lock:
            figures: dict[str, float] = dict(self._counts)
            batches = self._counts["batches"]
            figures["batch_max"] = self._largest
            figures["batch_mean"] = round(self._counts["items"] / batches, 2) if batches else 0.0
        return figures
