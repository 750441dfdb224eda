"""The completion thread: outcomes to the observer, rows copied out while the next batches run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from epd.contracts.errors import EncodeFailed
from epd.contracts.wire import FORWARD, PREPROCESS, STAGE
from epd.telemetry.counters import Count, Counters
from gpu_worker.engine.device import Device, Stamp, is_device_lost, is_out_of_memory
from gpu_worker.engine.forward import Rows
from gpu_worker.engine.slot import Encoded, Failed, Observer, Settled
from gpu_worker.engine.staging import RanItem
from gpu_worker.engine.watchdog import Watchdog

_log = logging.getLogger(__name__)


def settle_rows(rows: Rows, device: Device) -> list[Settled]:
    """Bring the packed rows to the host in one copy, and cut them by the plans' tokens.

    Where the host has no room for all of them they come in halves, down to single items, which then fail.
    """
    home = _Homecoming(rows, device)
    return home.settle(rows.items, rows.packed)


class _Homecoming:
    """The way back of one batch."""

    def __init__(self, rows: Rows, device: Device) -> None:
        self._rows = rows
        self._device = device
        self._shared: Mapping[str, float] | None = None

    def settle(self, items: Sequence[RanItem], packed: Tensor) -> list[Settled]:
        host = self._fetched(packed, self._rows.done)
        if host is not None:
            return self._cut(items, host)
        if len(items) == 1:
            return [Settled(items[0].planned.slot, Failed(EncodeFailed("out of memory")))]
        _log.warning("no host memory for the rows of %d items at once", len(items))
        first, second = items[: len(items) // 2], items[len(items) // 2 :]
        border = sum(item.planned.plan.tokens for item in first)
        return [*self.settle(first, packed[:border]), *self.settle(second, packed[border:])]

    def _fetched(self, packed: Tensor, ready: Stamp) -> Tensor | None:
        """The rows in host memory; None where it has no room."""
        try:
            return self._device.download(packed, ready)
        except Exception as error:
            if is_out_of_memory(error):
                return None
            raise

    def _cut(self, items: Sequence[RanItem], host: Tensor) -> list[Settled]:
        settled: list[Settled] = []
        start = 0
        for item in items:
            plan = item.planned.plan
            own = host[start : start + plan.tokens]
            start += plan.tokens
            outcome = Encoded(
                plan=plan,
                rows=raw_bytes(own),
                hidden=int(host.shape[1]),
                batch_size=len(self._rows.items),
                timings={STAGE: item.seconds, **self._seconds()},
            )
            settled.append(Settled(item.planned.slot, outcome))
        return settled

    def _seconds(self) -> Mapping[str, float]:
        """Preprocess and forward of the whole batch: its items took them together. Only once it is done."""
        if self._shared is None:
            rows = self._rows
            self._shared = {
                PREPROCESS: rows.begun.seconds_until(rows.preprocessed),
                FORWARD: rows.preprocessed.seconds_until(rows.done),
            }
        return self._shared


def raw_bytes(tensor: Tensor) -> memoryview:
    """A contiguous host tensor's bytes, without a copy; numpy has no bfloat16, so they go as uint8."""
    return tensor.view(torch.uint8).numpy().data.cast("B")


#: Batches whose rows may wait to be written before the device thread has to wait for the writer.
_BATCHES_AHEAD = 2
_TICK = 1.0

#: Most replies that the observer is told of in one call.
_TOGETHER = 16


class Replies:
    """Takes rows and settled slots from the other threads and tells the observer, in order of arrival."""

    def __init__(self, device: Device, observer: Observer, counters: Counters, watchdog: Watchdog) -> None:
        self._device = device
        self._watchdog = watchdog
        self._observer = observer
        self._counters = counters
        self._queue: queue.SimpleQueue[Rows | Sequence[Settled] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_BATCHES_AHEAD)
        self._thread = threading.Thread(target=self._loop, name="engine-reply", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put_rows(self, rows: Rows) -> None:
        """Hand a forward's output over; waits while too many are on their way, so that memory is bounded."""
        while not self._room.acquire(timeout=_TICK):
            if not self._thread.is_alive():
                return
        self._queue.put(rows)

    def put(self, settled: Sequence[Settled]) -> None:
        """Hand over outcomes that need no copy. Never waits."""
        if settled:
            self._queue.put(settled)

    def stop(self, timeout: float) -> None:
        """End the thread after all that was put before."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _loop(self) -> None:
        ended = False
        while not ended:
            waiting = self._waiting()
            ended = None in waiting
            settled: list[Settled] = []
            for reply in waiting:
                if reply is not None:
                    settled += self._settled(reply) if isinstance(reply, Rows) else reply
            if settled:
                self._tell(settled)
            for reply in waiting:
                if isinstance(reply, Rows):
                    self._room.release()

    def _waiting(self) -> list[Rows | Sequence[Settled] | None]:
        """Wait for one reply, and take with it those that came meanwhile: they cost one round trip."""
        taken = [self._queue.get()]
        with suppress(queue.Empty):
            while len(taken) < _TOGETHER:
                taken.append(self._queue.get_nowait())
        return taken

    def _settled(self, rows: Rows) -> Sequence[Settled]:
        slots = [item.planned.slot for item in rows.items]
        try:
            with self._watchdog.watch(f"the end of a batch of {len(slots)} for {slots[0].encoder}"):
                settled = settle_rows(rows, self._device)
        except Exception as error:
            if is_device_lost(error):
                self._observer.on_device_lost(error)
                return []
            _log.exception("copying %d outputs out raised", len(slots))
            failed = Failed(EncodeFailed("the output could not be copied out"))
            return [Settled(slot, failed) for slot in slots]
        self._count(slots[0].encoder, settled)
        return settled

    def _count(self, encoder: str, settled: Sequence[Settled]) -> None:
        outcomes = [one.outcome for one in settled if isinstance(one.outcome, Encoded)]
        if not outcomes:
            return
        counters, seconds = self._counters, outcomes[0].timings
        counters.add(Count.ENCODE_BATCHES, encoder=encoder)
        counters.add(Count.ENCODE_ITEMS, len(outcomes), encoder=encoder)
        counters.add(Count.ENCODE_TOKENS, sum(one.plan.tokens for one in outcomes), encoder=encoder)
        counters.add(Count.ENCODE_SECONDS, seconds[PREPROCESS] + seconds[FORWARD], encoder=encoder)
        counters.peak(Count.ENCODE_BATCH_PEAK, len(outcomes), encoder=encoder)

    def _tell(self, settled: Sequence[Settled]) -> None:
        for one in settled:
            if isinstance(one.outcome, Failed):
                self._counters.add(Count.ENCODE_FAILURES, encoder=one.slot.encoder)
        try:
            self._observer.on_settled(settled)
        except Exception:
            _log.exception("the observer raised on %d outcomes", len(settled))
