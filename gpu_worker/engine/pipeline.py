"""What is queued, staged and running, shared by the engine's threads under one lock; and the staging thread.

A batch is taken at once if nothing is staged or running. What happens while one runs differs:

- If uploads take time (``ahead``), a batch of all that is queued is staged at once, and filled up with new
  slots until the device takes it. So it is on the device when the batch before it ends, and as large as if it
  had been formed only then.
- On a CPU staging costs next to nothing, so the device thread stages each batch itself just before it runs
  it. A thread of its own would only cost two more hand-overs, which are most of the cost of a small batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from gpu_worker.engine.batcher import Batcher, Budget, Take
from gpu_worker.engine.device import Device
from gpu_worker.engine.replies import Replies
from gpu_worker.engine.slot import Dropped, DropReason, Observer, Planned, Settled, Slot
from gpu_worker.engine.staging import StagedItem, Staging, stage
from gpu_worker.engine.watchdog import Watchdog

_log = logging.getLogger(__name__)

#: Takes an error that no item caused, and the slots that were being staged.
ReportError = Callable[[Exception, Sequence[Slot]], None]

#: Longest single wait on the condition, in seconds. A missed wake-up costs no more than this.
_TICK = 1.0


class Pipeline:
    """The queued slots, at most one staged batch, and whether a batch runs. Thread-safe."""

    def __init__(
        self, budget: Budget, clock: Callable[[], float] = time.time, *, ahead: bool = False
    ) -> None:
        self._lock = threading.Lock()
        #: The staging thread waits for the first, the device thread for the second.
        self._stageable = threading.Condition(self._lock)
        self._runnable = threading.Condition(self._lock)
        self._batcher = Batcher(budget)
        self._clock = clock
        self.ahead = ahead
        self._staged: list[StagedItem] = []
        self._running = False
        self._stopping = False

    def __len__(self) -> int:
        """The number of queued slots."""
        with self._lock:
            return len(self._batcher)

    def add(self, planned: Planned) -> bool:
        """Queue a slot. Returns whether it was taken; not so once the engine is stopping."""
        with self._lock:
            if self._stopping:
                return False
            self._batcher.add(planned)
            self._notify_stager()
            return True

    def remove(self, slot_id: str) -> Planned | None:
        """Take a queued slot out. Returns ``None`` if it is not, or no longer, queued."""
        with self._lock:
            return self._batcher.remove(slot_id)

    # the staging thread

    def next_take(self) -> Take | None:
        """Wait until slots may be staged, and take them. Returns ``None`` when the engine stops."""
        with self._lock:
            while not self._may_take():
                if self._stopping:
                    return None
                self._stageable.wait(_TICK)
            if self._staged:
                return self._batcher.take_more(self._open_batch(), self._clock())
            return self._batcher.take(self._clock())

    def put_staged(self, items: Sequence[StagedItem]) -> None:
        """Give items to the device thread: added to the staged batch, or as a new one."""
        with self._lock:
            self._staged += items
            self._runnable.notify()

    @property
    def is_free(self) -> bool:
        """Whether nothing is staged or running, so that the device holds no batch."""
        with self._lock:
            return not self._staged and not self._running

    @property
    def has_staged(self) -> bool:
        """Whether a batch waits for the device."""
        return bool(self._staged)

    def await_free(self) -> bool:
        """Wait until nothing is staged or running. Returns ``False`` if the engine stops first."""
        with self._lock:
            while (self._staged or self._running) and not self._stopping:
                self._stageable.wait(_TICK)
            return not self._stopping

    def put_back(self, batch: Sequence[Planned]) -> None:
        """Queue slots again that were taken but are not staged now: there is no room, or the engine stops."""
        with self._lock:
            for planned in batch:
                self._batcher.add(planned)

    # the device thread

    def next_staged(self) -> list[StagedItem] | None:
        """Wait for a staged batch, which then runs. Returns ``None`` once the engine stops, staged or not."""
        with self._lock:
            while not self._staged and not self._stopping:
                self._runnable.wait(_TICK)
            if self._stopping:
                return None
            batch, self._staged = self._staged, []
            self._running = True
            self._notify_stager()
            return batch

    def finish_batch(self) -> None:
        """Note that the running batch has left the device thread."""
        with self._lock:
            self._running = False
            self._stageable.notify()

    def stop(self) -> None:
        """End every wait; nothing more is taken."""
        with self._lock:
            self._stopping = True
            self._stageable.notify_all()
            self._runnable.notify_all()

    def leftovers(self) -> list[Slot]:
        """Slots that were queued or staged and will not run. Call it after the threads have ended."""
        with self._lock:
            staged, self._staged = self._open_batch(), []
            return [planned.slot for planned in (*staged, *self._batcher.drain())]

    def _may_take(self) -> bool:
        if self._stopping or not len(self._batcher):
            return False
        if self._staged:
            return self.ahead and self._batcher.can_fill(self._open_batch())
        return self.ahead or not self._running

    def _notify_stager(self) -> None:
        if self._may_take():
            self._stageable.notify()

    def _open_batch(self) -> list[Planned]:
        return [item.planned for item in self._staged]


class Stager:
    """Takes batches, drops slots that are no longer wanted, and stages the rest. For one thread.

    With ``ahead`` that is a thread of its own, else the one that runs the batches.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        device: Device,
        observer: Observer,
        replies: Replies,
        watchdog: Watchdog,
        report: ReportError,
    ) -> None:
        self._pipeline = pipeline
        self._device = device
        self._observer = observer
        self._replies = replies
        self._watchdog = watchdog
        self._report = report

    def run(self) -> None:
        """Stage batches until the engine stops."""
        while self.stage_next():
            pass

    def stage_next(self) -> bool:
        """Wait for a batch and stage it. Returns ``False`` when the engine stops."""
        take = self._pipeline.next_take()
        if take is None:
            return False
        self._drop(take.expired, DropReason.EXPIRED)
        if take.batch:
            self._stage_all(self._begun(take.batch))
        return True

    def _stage_all(self, batch: Sequence[Planned]) -> None:
        """Stage a batch, in several parts if the device has no room for all of it at once."""
        rest = batch
        while rest := self._stage_some(rest):
            _log.warning("%d of %d items wait for room on the device", len(rest), len(batch))
            if not self._pipeline.ahead or not self._pipeline.await_free():
                self._pipeline.put_back(rest)
                return

    def _stage_some(self, batch: Sequence[Planned]) -> Sequence[Planned]:
        """Stage what there is room for, and return the rest. Keeps no tensor: the rest needs the memory."""
        staging = self._staged(batch)
        self._replies.put(staging.failed)
        self._pipeline.put_staged(staging.items)
        return staging.rest

    def _staged(self, batch: Sequence[Planned]) -> Staging:
        try:
            with self._watchdog.watch(f"staging a batch of {len(batch)}"):
                return stage(batch, self._device, alone=self._pipeline.is_free)
        except Exception as error:
            self._report(error, [one.slot for one in batch])
            return Staging()

    def _begun(self, batch: Sequence[Planned]) -> list[Planned]:
        """The wanted slots of a batch, after the observer has seen that they begin."""
        kept = self._wanted([one.slot for one in batch])
        wanted = [one for one in batch if one.slot.id in kept]
        self._drop([one for one in batch if one.slot.id not in kept], DropReason.CANCELLED)
        try:
            self._observer.on_begun([one.slot for one in wanted])
        except Exception as error:
            self._report(error, [one.slot for one in wanted])
            return []
        return wanted

    def _wanted(self, slots: Sequence[Slot]) -> set[str]:
        try:
            return self._observer.still_wanted(slots)
        except Exception:
            _log.exception("cannot find out whether %d slots are wanted; they are encoded", len(slots))
            return {slot.id for slot in slots}

    def _drop(self, batch: Sequence[Planned], reason: DropReason) -> None:
        self._replies.put([Settled(one.slot, Dropped(reason)) for one in batch])
