"""What the engine takes and gives back: slots, pieces of items, outcomes. Frozen; no tensors, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epd.contracts.errors import EpdError
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, RawMedia

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One item in the GPU worker. ``id`` is unique among the slots that the engine holds.

    ``path`` is the absolute path of the raw blob. ``deadline`` and ``enqueued`` are Unix times in seconds.
    With a ``piece`` only that part of the item is encoded, and the outcome holds only its rows.
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
    """A slot with its encoder's plan."""

    slot: Slot
    plan: ItemPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """An item that was encoded.

    ``rows`` are the bytes of a contiguous [tokens, ``hidden``] tensor of the encoder's dtype, in host
    memory; the view keeps the batch's buffer alive. ``batch_size`` is the number of items in the forward.
    ``timings`` are seconds by stage name.
    """

    plan: ItemPlan
    rows: memoryview
    hidden: int
    batch_size: int
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """An item that cannot be encoded. The other items of its batch are not affected."""

    error: EpdError


class DropReason(StrEnum):
    """Why a slot left the engine without a forward."""

    EXPIRED = "expired"  #: its deadline passed while it was queued
    CANCELLED = "cancelled"  #: it was cancelled, or is no longer wanted


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


class Observer(Protocol):
    """Called from the engine's threads. Calls must be bounded in time; what they raise is logged."""

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        """The ids of those slots of a new batch that should run. The others are dropped as cancelled."""
        ...

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """These slots form a batch that is about to run. Called before their outcome."""
        ...

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Outcomes, once for each slot. The next batches run in the meantime."""
        ...

    def on_device_lost(self, error: BaseException) -> None:
        """The device is unusable in this process. No further outcomes follow."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Some segments of one item, in order. Their raw media are ``runs`` of the raw's first axis, joined."""

    plan: ItemPlan
    runs: tuple[slice, ...]


def piece_of(plan: ItemPlan, wanted: Sequence[int]) -> Piece:
    """The piece of these segments, whose indices rise. Its sizes are its own, all other facts the item's.

    Raises:
        ValueError: the item cannot be cut at its segments.
    """
    if plan.raw_step is None:
        raise ValueError("the item cannot be cut")
    segments, grid = tuple(plan.segments[index] for index in wanted), plan.facts.grid_thw
    tokens = plan.tokens_of_segments()
    own = replace(
        plan,
        tokens=sum(tokens[index] for index in wanted),
        cost=sum(segments),
        segments=segments,
        segment_tokens=tuple(tokens[index] for index in wanted) if plan.segment_tokens else (),
        facts=replace(plan.facts, grid_thw=grid and (len(segments), *grid[1:])),
    )
    return Piece(own, tuple(_runs(wanted, plan.raw_step)))


def _runs(wanted: Sequence[int], step: int) -> Iterator[slice]:
    """One slice for each run of neighbouring segments, so that adjacent media are copied together."""
    start = 0
    for at, index in enumerate(wanted):
        if at + 1 == len(wanted) or wanted[at + 1] != index + 1:
            yield slice(wanted[start] * step, (index + 1) * step)
            start = at + 1
