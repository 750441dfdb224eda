"""Rows of a forward to outcomes in host memory, cut item by item."""

from __future__ import annotations

import torch
from torch import Tensor

from epd.contracts.timings import FORWARD, PREPROCESS, STAGE
from gpu_worker.engine.device import Device
from gpu_worker.engine.forward import Rows
from gpu_worker.engine.slot import Encoded, Settled


def settle_rows(rows: Rows, device: Device) -> list[Settled]:
    """Bring the packed rows to the host in one copy, and cut them by the plans' tokens.

    Preprocess and forward are the whole batch's seconds: its items took them together.
    """
    host = device.download(rows.packed, rows.done)
    shared = {
        PREPROCESS: rows.begun.seconds_until(rows.preprocessed),
        FORWARD: rows.preprocessed.seconds_until(rows.done),
    }
    settled: list[Settled] = []
    start = 0
    for item in rows.items:
        plan = item.planned.plan
        own = host[start : start + plan.tokens]
        start += plan.tokens
        outcome = Encoded(
            plan=plan,
            rows=raw_bytes(own),
            hidden=int(host.shape[1]),
            batch_size=len(rows.items),
            timings={STAGE: item.seconds, **shared},
        )
        settled.append(Settled(item.planned.slot, outcome))
    return settled


def raw_bytes(tensor: Tensor) -> memoryview:
    """A contiguous host tensor's bytes, without a copy; numpy has no bfloat16, so they go as uint8."""
    return tensor.view(torch.uint8).numpy().data.cast("B")
