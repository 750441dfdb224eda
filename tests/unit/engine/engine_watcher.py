"""An observer of the engine for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gpu_worker.engine.slot import Outcome, Settled, Slot


class Watcher:
    """An observer that keeps what is reported to it."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.begun: list[list[str]] = []
        self.unwanted: set[str] = set()
        self.lost: list[BaseException] = []
        self.threads: list[str] = []

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        return {slot.id for slot in slots} - self.unwanted

    def on_begun(self, slots: Sequence[Slot]) -> None:
        self.begun.append([slot.id for slot in slots])

    def on_settled(self, settled: Sequence[Settled]) -> None:
        self.threads.append(threading.current_thread().name)
        for one in settled:
            assert one.slot.id not in self.outcomes, "settled twice"
            self.outcomes[one.slot.id] = one.outcome

    def on_device_lost(self, error: BaseException) -> None:
        self.lost.append(error)

    def wait(self, count: int, within: float = 20.0) -> None:
        end = time.monotonic() + within
        while len(self.outcomes) < count:
            assert time.monotonic() < end, f"{len(self.outcomes)} of {count} outcomes"
            time.sleep(0.002)
