"""Rows of a forward to outcomes in host memory, cut item by item."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from epd.contracts.errors import EncodeFailed
from epd.contracts.timings import FORWARD, PREPROCESS, STAGE
from gpu_worker.engine.device import Device, Stamp, is_out_of_memory
from gpu_worker.engine.forward import Rows
from gpu_worker.engine.slot import Encoded, Failed, Settled
from gpu_worker.engine.staging import RanItem

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
