"""Slots and plans for the tests of the engine's pure parts: no tensor, no file."""

from __future__ import annotations

import itertools
from pathlib import Path

from epd.contracts.job import Priority
from epd.contracts.media import BlobRef, ItemOptions, RawImage
from gpu_worker.encoders.base import ItemPlan
from gpu_worker.engine.slot import Planned, Slot

_numbers = itertools.count()
NEVER = 1e12


def make_slot(
    *,
    encoder: str = "eye",
    priority: Priority = Priority.INTERACTIVE,
    deadline: float = NEVER,
    slot_id: str | None = None,
    path: Path = Path("/nowhere"),
    height: int = 4,
    width: int = 6,
) -> Slot:
    blob = BlobRef(name="r-blob", nbytes=height * width * 3)
    return Slot(
        id=slot_id or f"slot-{next(_numbers)}",
        encoder=encoder,
        raw=RawImage(blob=blob, height=height, width=width, original_size=(width, height)),
        path=path,
        options=ItemOptions(),
        priority=priority,
        deadline=deadline,
        enqueued=0.0,
    )


def make_planned(cost: int = 1, *, bucket: str = "b", slot: Slot | None = None) -> Planned:
    return Planned(slot or make_slot(), ItemPlan(tokens=cost, cost=cost, bucket=bucket))
