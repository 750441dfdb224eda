"""The hand-over between the engine's threads: what is queued, staged and running, under one lock.

A batch is taken at once when nothing is staged or running. While one runs, the next is staged:

- Where uploads take time (``ahead``), with whatever is queued, and until the device takes it the staged batch
  is filled up with what comes: so it is on the device when the one before ends, and as large as if it had
  been formed then.
- Where staging is next to nothing, on a CPU, only once it is full. A part batch can only grow until the
  device is free, and every further take would ask the store once more who is still wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gpu_worker.engine.batcher import Batcher, Budget, Take
from gpu_worker.engine.slot import Planned, Slot
from gpu_worker.engine.staging import StagedItem

#: Upper bound of one wait on the condition, in seconds; a missed wake-up costs no more than this.
_TICK = 1.0


class Pipeline:
    """Queued slots, at most one staged batch, and whether one runs. Thread-safe."""

    def __init__(
        self, budget: Budget, clock: Callable[[], float] = time.time, *, ahead: bool = False
    ) -> None:
        self._changed = threading.Condition()
        self._batcher = Batcher(budget)
        self._clock = clock
        self._ahead = ahead
        self._staged: list[StagedItem] = []
        self._running = False
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

    # the staging thread

    def next_take(self) -> Take | None:
        """Wait until slots may be staged, and take them; None when the engine stops."""
        with self._changed:
            while not self._may_take():
                if self._stopping:
                    return None
                self._changed.wait(_TICK)
            if self._staged:
                return self._batcher.take_beside(self._open_batch(), self._clock())
            return self._batcher.take(self._clock())

    def put_staged(self, items: Sequence[StagedItem]) -> None:
        """Hand items to the device thread: with those that are staged, or as a batch of their own."""
        with self._changed:
            self._staged += items
            self._changed.notify_all()

    @property
    def is_free(self) -> bool:
        """Whether nothing is staged or running, so that the device holds no batch."""
        with self._changed:
            return not self._staged and not self._running

    def await_free(self) -> bool:
        """Wait until nothing is staged or running. False: the engine stops."""
        with self._changed:
            while (self._staged or self._running) and not self._stopping:
                self._changed.wait(_TICK)
            return not self._stopping

    def put_back(self, batch: Sequence[Planned]) -> None:
        """Slots that were taken and will not be staged, since the engine stops."""
        with self._changed:
            for planned in batch:
                self._batcher.add(planned)

    # the device thread

    def next_staged(self) -> list[StagedItem] | None:
        """Wait for a staged batch, which then runs; None when the engine stops, also when there is one."""
        with self._changed:
            while not self._staged and not self._stopping:
                self._changed.wait(_TICK)
            if self._stopping:
                return None
            batch, self._staged = self._staged, []
            self._running = True
            self._changed.notify_all()
            return batch

    def finish_batch(self) -> None:
        """The running batch has left the device thread."""
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Let every wait end; nothing more is taken."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def leftovers(self) -> list[Slot]:
        """Slots that were queued or staged and will not run. Only after the threads have ended."""
        with self._changed:
            staged, self._staged = self._open_batch(), []
            return [planned.slot for planned in (*staged, *self._batcher.drain())]

    def _may_take(self) -> bool:
        if self._stopping or not len(self._batcher):
            return False
        if self._staged:
            return self._ahead and self._batcher.can_fill(self._open_batch())
        return not self._running or self._ahead or self._batcher.has_full_batch()

    def _open_batch(self) -> list[Planned]:
        return [item.planned for item in self._staged]
