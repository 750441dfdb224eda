"""What the engine is given and what it gives back: slots and outcomes. Frozen; no tensor, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from epd.contracts.errors import EpdError
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.engine.piece import Piece

if TYPE_CHECKING:  # the plan's module holds tensor types, which the pure modules must not load
    from gpu_worker.encoders.base import ItemPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One item in the GPU worker. ``id`` is unique among the slots that the engine holds.

    ``path`` is the absolute path of the raw blob. ``deadline`` and ``enqueued`` are Unix times in seconds.
    ``piece``: what of the item is to be encoded, where that is not all; its outcome then holds that alone.
    """

    id: str
    encoder: str
    raw: RawMedia
    path: Path
    options: ItemOptions
    priority: Priority
    deadline: float
    enqueued: float
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A slot with the plan of its encoder."""

    slot: Slot
    plan: ItemPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """An item that was encoded.

    ``rows`` are the bytes of a contiguous [tokens, ``hidden``] tensor of the encoder's dtype, in host
    memory; the view keeps the batch's buffer alive. ``batch_size`` counts the items of the same forward;
    ``timings`` are seconds by stage name.
    """

    plan: ItemPlan
    rows: memoryview
    hidden: int
    batch_size: int
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """An item that cannot be encoded; its batch mates are not touched by it."""

    error: EpdError


class DropReason(StrEnum):
    """Why a slot left the engine without a forward."""

    EXPIRED = "expired"  #: its deadline passed while it was queued
    CANCELLED = "cancelled"  #: it was taken back, or nobody wants it any more


@dataclass(frozen=True, slots=True)
class Dropped:
    """An item that was not run."""

    reason: DropReason


Outcome = Encoded | Failed | Dropped


@dataclass(frozen=True, slots=True)
class Settled:
    """A slot with its outcome."""

    slot: Slot
    outcome: Outcome
