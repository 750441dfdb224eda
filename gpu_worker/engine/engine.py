"""The engine: one thread stages batches, one owns the device, one copies the rows back.

    submit -> queued -> staging thread -> one staged batch -> device thread -> completion thread -> observer

While batch N runs, batch N+1 is staged and batch N-1 is written. On a CPU the device thread does the staging
too, and reports a batch itself if nothing is queued. A bad item fails alone; only a lost device ends the
engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from epd.contracts.errors import EncodeFailed, EncoderNotReady, Internal, SettingsError
from epd.telemetry.counters import Count, Counters
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget, plan_slot
from gpu_worker.engine.device import Device, DeviceHung, is_device_lost
from gpu_worker.engine.forward import EagerRunner, ForwardPass, GraphFigures, Rows, Runner
from gpu_worker.engine.pipeline import Pipeline, Stager
from gpu_worker.engine.replies import Replies
from gpu_worker.engine.slot import Dropped, DropReason, Failed, Observer, Outcome, Planned, Settled, Slot
from gpu_worker.engine.staging import StagedItem
from gpu_worker.engine.watchdog import Watchdog

_log = logging.getLogger(__name__)

#: Device work that takes longer, in seconds, counts as hung.
BATCH_TIMEOUT = 300.0


class Engine:
    """Encodes slots on one device. ``submit`` and ``cancel`` may be called from any thread."""

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        *,
        budget: Budget,
        device: Device,
        observer: Observer,
        runner: Runner | None = None,
        batch_timeout: float = BATCH_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = Counters()
        self._encoders = dict(encoders)
        self._device = device
        self._observer = observer
        self._runner: Runner = runner or EagerRunner()
        self._forward = ForwardPass(device, self._runner, budget.max_cost)
        self._pipeline = Pipeline(budget, clock, ahead=device.kind != "cpu")
        self._watchdog = Watchdog(batch_timeout, self._on_hung)
        self._replies = Replies(device, observer, self.counters, self._watchdog)
        self._stager = Stager(
            pipeline=self._pipeline,
            device=device,
            observer=observer,
            replies=self._replies,
            watchdog=self._watchdog,
            report=self._report,
        )
        self._warm = threading.Event()
        self._trouble: BaseException | None = None
        self._threads = [threading.Thread(target=self._device_loop, name="engine-device", daemon=True)]
        if self._pipeline.ahead:
            self._threads.append(threading.Thread(target=self._stager.run, name="engine-stage", daemon=True))

    def start(self, timeout: float = 600.0) -> None:
        """Start the threads and warm up every encoder on the device thread. Returns when all are warm.

        Raises:
            EncodeFailed: an encoder cannot run, or warm-up takes longer than ``timeout`` seconds.
            SettingsError: a graph that is required could not be captured.
        """
        self._replies.start()
        for thread in self._threads:
            thread.start()
        if not self._warm.wait(timeout):
            raise EncodeFailed(f"the encoders are not warm after {timeout:.0f} s")
        if isinstance(self._trouble, SettingsError):
            raise self._trouble
        if self._trouble is not None:
            raise EncodeFailed(f"warm-up failed: {self._trouble}") from self._trouble
        self._watchdog.start()

    @property
    def queued(self) -> int:
        """Slots that wait for a batch."""
        return len(self._pipeline)

    @property
    def is_running(self) -> bool:
        """Whether a thread of the engine is alive. After ``stop``: whether one did not end in time."""
        return any(thread.is_alive() for thread in self._threads)

    def graph_figures(self) -> Mapping[str, GraphFigures]:
        """What captured forwards did, by encoder. Empty if nothing is captured."""
        return self._runner.all_figures()

    def staging_bytes(self) -> int:
        """Measured bytes of the host memory that copies go through."""
        return self._device.staging_bytes()

    def submit(self, slot: Slot) -> bool:
        """Plan and queue a slot. The observer gets its outcome.

        Returns:
            Whether the slot was taken; not so once the engine is stopping.
        """
        encoder = self._encoders.get(slot.encoder)
        if encoder is None:
            planned: Planned | Failed = Failed(EncoderNotReady(f"no encoder {slot.encoder!r} here"))
        else:
            planned = plan_slot(slot, encoder)
        if isinstance(planned, Planned):
            return self._pipeline.add(planned)
        self._settle([slot], planned)
        return True

    def cancel(self, slot_id: str) -> bool:
        """Drop a slot if it is still queued. Returns whether it was."""
        planned = self._pipeline.remove(slot_id)
        if planned is None:
            return False
        self._settle([planned.slot], Dropped(DropReason.CANCELLED))
        return True

    def stop(self, timeout: float) -> list[Slot]:
        """Finish the running batch and its replies within ``timeout`` seconds.

        Returns:
            The slots that did not run.
        """
        end = time.monotonic() + timeout
        self._pipeline.stop()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._replies.stop(max(0.0, end - time.monotonic()))
        self._watchdog.stop()
        return self._pipeline.leftovers()

    def _settle(self, slots: Iterable[Slot], outcome: Outcome) -> None:
        self._replies.put([Settled(slot, outcome) for slot in slots])

    # device thread

    def _device_loop(self) -> None:
        try:
            for encoder in self._encoders.values():
                self._runner.warm_up(encoder)
        except Exception as error:
            self._trouble = error
            return
        finally:
            self._warm.set()
        while (items := self._next_staged()) is not None:
            self._run_batch(items)
            # The media must leave the device before the staging thread sees that it is free.
            del items
            self._pipeline.finish_batch()

    def _next_staged(self) -> list[StagedItem] | None:
        if not self._pipeline.ahead:
            while not self._pipeline.has_staged:
                if not self._stager.stage_next():
                    return None
        return self._pipeline.next_staged()

    def _run_batch(self, items: Sequence[StagedItem]) -> None:
        encoder = self._encoders[items[0].planned.slot.encoder]
        open_slots = {item.planned.slot.id: item.planned.slot for item in items}
        try:
            for part in self._watched(encoder, items):
                done = [item.planned.slot for item in part.items] if isinstance(part, Rows) else [part.slot]
                for slot in done:
                    del open_slots[slot.id]
                self._hand_over(part)
        except Exception as error:
            self._report(error, list(open_slots.values()))

    def _watched(self, encoder: Encoder, items: Sequence[StagedItem]) -> Iterator[Rows | Settled]:
        """The parts of a batch. The watchdog counts the device's time, not that of the caller in between."""
        what = f"a batch of {len(items)} for {encoder.card.name}"
        with self._watchdog.watch(what):
            self._device.await_uploads([item.raw for item in items])
        parts = self._forward.run(encoder, items)
        while True:
            with self._watchdog.watch(what):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def _on_hung(self, text: str) -> None:
        self.counters.add(Count.ENCODE_HANGS)
        self._observer.on_device_lost(DeviceHung(text))

    def _hand_over(self, part: Rows | Settled) -> None:
        if not isinstance(part, Rows):
            self._replies.put([part])
        elif self._pipeline.ahead or len(self._pipeline) or not self._replies.report_now(part):
            # On a CPU with an empty queue nothing overlaps, so handing over would only cost time.
            self._replies.put_rows(part)

    def _report(self, error: Exception, slots: Sequence[Slot]) -> None:
        _log.error("a batch of %d could not be run", len(slots), exc_info=error)
        if is_device_lost(error):
            self._observer.on_device_lost(error)
        else:
            self._settle(slots, Failed(Internal(f"the engine raised {type(error).__name__}")))
