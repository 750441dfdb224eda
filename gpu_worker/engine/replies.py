"""The completion thread: copies rows to the host while the next batches run, and reports outcomes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from epd.contracts.errors import EncodeFailed
from epd.contracts.timings import FORWARD, PREPROCESS, STAGE
from epd.telemetry.counters import Count, Counters
from gpu_worker.engine.device import Device, Stamp, is_device_lost, is_out_of_memory
from gpu_worker.engine.forward import Rows
from gpu_worker.engine.slot import Encoded, Failed, Observer, Settled
from gpu_worker.engine.staging import RanItem
from gpu_worker.engine.watchdog import Watchdog

_log = logging.getLogger(__name__)

#: Batches whose rows may wait to be written. With more, the device thread waits.
_BATCHES_AHEAD = 2
_TICK = 1.0

#: Most replies that one call of the observer reports.
_MOST_AT_ONCE = 16


class Replies:
    """Takes rows and settled slots from the other threads, and reports them in order of arrival."""

    def __init__(self, device: Device, observer: Observer, counters: Counters, watchdog: Watchdog) -> None:
        self._device = device
        self._watchdog = watchdog
        self._observer = observer
        self._counters = counters
        self._queue: queue.SimpleQueue[Rows | Sequence[Settled] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_BATCHES_AHEAD)
        #: Held while replies are reported, on whichever thread.
        self._reporting = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="engine-reply", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put_rows(self, rows: Rows) -> None:
        """Pass on the output of a forward. Waits while too many are pending, so that memory is bounded."""
        while not self._room.acquire(timeout=_TICK):
            if not self._thread.is_alive():
                return
        self._queue.put(rows)

    def report_now(self, rows: Rows) -> bool:
        """Report the output of a forward on the calling thread, unless other replies wait or are reported.

        Returns:
            Whether it was reported.
        """
        if not self._queue.empty() or not self._reporting.acquire(blocking=False):
            return False
        try:
            self._report([rows])
        finally:
            self._reporting.release()
        return True

    def put(self, settled: Sequence[Settled]) -> None:
        """Pass on outcomes that need no copy. Never waits."""
        if settled:
            self._queue.put(settled)

    def stop(self, timeout: float) -> None:
        """End the thread once it has handled everything that was put before."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _loop(self) -> None:
        ended = False
        while not ended:
            waiting = self._waiting()
            ended = None in waiting
            with self._reporting:
                self._report([reply for reply in waiting if reply is not None])
            for reply in waiting:
                if isinstance(reply, Rows):
                    self._room.release()

    def _report(self, replies: Sequence[Rows | Sequence[Settled]]) -> None:
        settled: list[Settled] = []
        for reply in replies:
            settled += self._settled(reply) if isinstance(reply, Rows) else reply
        if settled:
            self._notify(settled)

    def _waiting(self) -> list[Rows | Sequence[Settled] | None]:
        """Wait for a reply, and take all that have arrived by then: together they cost one round trip."""
        taken = [self._queue.get()]
        with suppress(queue.Empty):
            while len(taken) < _MOST_AT_ONCE:
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

    def _notify(self, settled: Sequence[Settled]) -> None:
        for one in settled:
            if isinstance(one.outcome, Failed):
                self._counters.add(Count.ENCODE_FAILURES, encoder=one.slot.encoder)
        try:
            self._observer.on_settled(settled)
        except Exception:
            _log.exception("the observer raised on %d outcomes", len(settled))


def settle_rows(rows: Rows, device: Device) -> list[Settled]:
    """Copy the packed rows to the host at once, and cut them by the plans' tokens.

    If the host has no memory for all of them, they are copied in halves, down to single items, which fail.
    """
    return _RowCopy(rows, device).settle(rows.items, rows.packed)


class _RowCopy:
    """The copy of one batch's rows to host memory."""

    def __init__(self, rows: Rows, device: Device) -> None:
        self._rows = rows
        self._device = device
        self._shared: Mapping[str, float] | None = None

    def settle(self, items: Sequence[RanItem], packed: Tensor) -> list[Settled]:
        host = self._download(packed, self._rows.done)
        if host is not None:
            return self._cut(items, host)
        if len(items) == 1:
            return [Settled(items[0].planned.slot, Failed(EncodeFailed("out of memory")))]
        _log.warning("no host memory for the rows of %d items at once", len(items))
        first, second = items[: len(items) // 2], items[len(items) // 2 :]
        border = sum(item.planned.plan.tokens for item in first)
        return [*self.settle(first, packed[:border]), *self.settle(second, packed[border:])]

    def _download(self, packed: Tensor, ready: Stamp) -> Tensor | None:
        """The rows in host memory, or ``None`` if there is no room for them."""
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
        """Seconds of preprocess and forward, which a batch's items share. Only once the batch is done."""
        if self._shared is None:
            rows = self._rows
            self._shared = {
                PREPROCESS: rows.begun.seconds_until(rows.preprocessed),
                FORWARD: rows.preprocessed.seconds_until(rows.done),
            }
        return self._shared


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, without a copy; as uint8, since numpy has no bfloat16."""
    return tensor.view(torch.uint8).numpy().data.cast("B")
