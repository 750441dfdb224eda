"""The staging thread: brings the next batch from the queue to the device while the one before it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gpu_worker.engine.device import Device
from gpu_worker.engine.pipeline import Pipeline
from gpu_worker.engine.replies import Replies
from gpu_worker.engine.slot import Dropped, DropReason, Observer, Planned, Settled, Slot
from gpu_worker.engine.staging import Staging, stage
from gpu_worker.engine.watchdog import Watchdog

_log = logging.getLogger(__name__)

#: Takes an error that no item caused, and the slots that were being staged.
ReportError = Callable[[Exception, Sequence[Slot]], None]


class Stager:
    """Takes batches, drops slots that are no longer wanted, and stages the rest. For one thread."""

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
        while (take := self._pipeline.next_take()) is not None:
            self._drop(take.expired, DropReason.EXPIRED)
            if take.batch:
                self._stage_all(self._begun(take.batch))

    def _stage_all(self, batch: Sequence[Planned]) -> None:
        """Stage a batch, in several parts if the device has no room for all of it at once."""
        rest = batch
        while rest := self._stage_some(rest):
            _log.warning("%d of %d items wait for room on the device", len(rest), len(batch))
            if not self._pipeline.await_free():
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
