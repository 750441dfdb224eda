"""What the engine tells its owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu_worker.engine.slot import Settled, Slot


class Observer(Protocol):
    """Called from the engine's own threads; must be quick or bounded in time. What it raises is logged."""

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        """Asked when a batch is formed: the ids of those to run. The others are dropped as cancelled."""
        ...

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """These slots form a batch that is about to run. Comes before their outcome."""
        ...

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Outcomes, each slot once. While this runs, the next batches do."""
        ...

    def on_device_lost(self, error: BaseException) -> None:
        """The device is unusable in this process; no further outcome comes."""
        ...
