"""The hand-over between the engine's threads: what is queued, staged and running, under one lock.

A batch is taken at once when nothing is staged or running. While one runs, the next is staged ahead only
if it is full already. That is right under any backlog: a part batch holds all that is queued for its lane, so
waiting for the device can only add to it, and costs at most the seconds of staging it (copies of the one or
two milliseconds in which the device would have started it). Taking it early costs a whole forward more, when
its later mates run apart. Where enough is queued for waiting to gain nothing, the batch is full, and is
staged while the device runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gpu_worker.engine.batcher import Batcher, Take
from gpu_worker.engine.planner import Budget
from gpu_worker.engine.slot import Planned, Slot
from gpu_worker.engine.staging import StagedItem

#: Upper bound of one wait on the condition, in seconds; a missed wake-up costs no more than this.
_TICK = 1.0


class Pipeline:
    """Queued slots, at most one staged batch, and how many batches are staged or running. Thread-safe."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.time) -> None:
        self._changed = threading.Condition()
        self._batcher = Batcher(budget)
        self._clock = clock
        self._staged: list[StagedItem] | None = None
        self._in_hand = 0
        self._stopping = False

    def __len__(self) -> int:
        """How many slots are queued."""
        with self._changed:
            return len(self._batcher)

    def add(self, planned: Planned) -> bool:
        """Queue a slot. False: the engine is stopping, the slot was not taken."""
        with self._changed:
            if self._stopping:
                return False
            self._batcher.add(planned)
            self._changed.notify_all()
            return True

    def remove(self, slot_id: str) -> Planned | None:
        """Take a queued slot out; None when it is not queued (any more)."""
        with self._changed:
            return self._batcher.remove(slot_id)

    def next_take(self) -> Take | None:
        """Wait until a batch may be staged, and take it; None when the engine stops.

        A take with a batch counts as in hand until ``finish_batch``.
        """
        with self._changed:
            while not self._may_take():
                if self._stopping:
                    return None
                self._changed.wait(_TICK)
            take = self._batcher.take(self._clock())
            if take.batch:
                self._in_hand += 1
            return take

    @property
    def is_alone(self) -> bool:
        """Whether the batch in hand is the only one."""
        with self._changed:
            return self._in_hand == 1

    def begin_alone(self) -> bool:
        """Wait until no batch is in hand, and take one more in hand. False: the engine stops."""
        with self._changed:
            while self._in_hand and not self._stopping:
                self._changed.wait(_TICK)
            if self._stopping:
                return False
            self._in_hand += 1
            return True

    def put_back(self, batch: Sequence[Planned]) -> None:
        """Slots that were taken and will not be staged, the engine being about to stop."""
        with self._changed:
            for planned in batch:
                self._batcher.add(planned)

    def put_staged(self, items: list[StagedItem]) -> None:
        """Hand a staged batch to the device thread."""
        with self._changed:
            self._staged = items
            self._changed.notify_all()

    def next_staged(self) -> list[StagedItem] | None:
        """Wait for a staged batch; None when the engine stops, also when one is staged."""
        with self._changed:
            while self._staged is None and not self._stopping:
                self._changed.wait(_TICK)
            if self._stopping:
                return None
            staged, self._staged = self._staged, None
            return staged

    def finish_batch(self) -> None:
        """The batch taken first has left the device (or had nothing to run)."""
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Let every wait end; nothing more is taken."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def leftovers(self) -> list[Slot]:
        """Slots that were queued or staged and will not run. Only after the threads have ended."""
        with self._changed:
            staged = [item.planned for item in self._staged or []]
            self._staged = None
            return [planned.slot for planned in (*staged, *self._batcher.drain())]

    def _may_take(self) -> bool:
        if self._stopping or not len(self._batcher):
            return False
        if self._in_hand == 0:
            return True
        return self._in_hand == 1 and self._staged is None and self._batcher.has_full_batch()
