"""Which queued slots form the next batch. Pure: no torch, no threads, and the time is an argument.

Slots wait in lanes. A lane is an encoder and a bucket, so all slots of a lane may share a forward. Each batch
has a leader, the oldest slot of the priority whose turn it is, and is filled from the leader's lane:
interactive slots before bulk slots. No slot starves: the leader is always the oldest of its priority, and
while bulk slots wait, one of them leads every ``bulk_every``-th batch.

Nothing here waits for a fuller batch: the caller takes one when its device is idle. A batch that was taken
earlier may be filled up with slots that arrive until then.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from epd.contracts.errors import EncodeFailed, EpdError
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.engine.slot import Failed, Planned, Slot, piece_of

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan


_log = logging.getLogger(__name__)

#: One in so many batches is led by a bulk slot, if one waits.
BULK_EVERY = 4

#: The order in which a lane is served.
_SERVING_ORDER = (Priority.INTERACTIVE, Priority.BULK)

_LaneKey = tuple[str, Hashable]


class Plans(Protocol):
    """What planning needs of an encoder."""

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """Sizes and Decode facts of one item."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Bounds of one batch: the number of items, and their cost in the encoders' own unit.

    An item that costs more than ``max_cost`` forms a batch by itself, and runs in parts (``split``).
    """

    max_items: int
    max_cost: int

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if no batch could ever be formed."""
        if self.max_items < 1 or self.max_cost < 1:
            raise ValueError(f"a batch needs room for one item, not {self}")


@dataclass(frozen=True, slots=True)
class Take:
    """What left the batcher: a batch of one lane, which may be empty, and slots past their deadline."""

    batch: tuple[Planned, ...] = ()
    expired: tuple[Planned, ...] = ()


@dataclass(slots=True)
class _Lane:
    """Slots by priority and id, in order of arrival, and their total cost."""

    waiting: dict[Priority, dict[str, Planned]] = field(
        default_factory=lambda: {priority: {} for priority in Priority}
    )
    cost: int = 0

    def __len__(self) -> int:
        return sum(len(slots) for slots in self.waiting.values())


class Batcher:
    """Holds slots and hands out batches within a budget. Not thread-safe: the engine locks it."""

    def __init__(self, budget: Budget, bulk_every: int = BULK_EVERY) -> None:
        self._budget = budget
        self._bulk_every = bulk_every
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._arrival: dict[str, tuple[int, _LaneKey]] = {}
        self._next_number = 0
        self._since_bulk_led = 0

    def __len__(self) -> int:
        return len(self._arrival)

    def add(self, planned: Planned) -> None:
        """Queue a slot. Raises ``ValueError`` if one with its id is already queued."""
        slot = planned.slot
        if slot.id in self._arrival:
            raise ValueError(f"slot {slot.id} is already queued")
        key = (slot.encoder, planned.plan.bucket)
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting[slot.priority][slot.id] = planned
        lane.cost += planned.plan.cost
        self._arrival[slot.id] = (self._next_number, key)
        self._next_number += 1

    def remove(self, slot_id: str) -> Planned | None:
        """Take a slot out. Returns ``None`` if it is not queued."""
        if slot_id not in self._arrival:
            return None
        _, key = self._arrival.pop(slot_id)
        lane = self._lanes[key]
        priority = next(one for one in Priority if slot_id in lane.waiting[one])
        planned = lane.waiting[priority].pop(slot_id)
        lane.cost -= planned.plan.cost
        if not len(lane):
            del self._lanes[key]
        return planned

    def take(self, now: float) -> Take:
        """Remove and return the next batch, and all slots with a deadline up to ``now`` (Unix seconds)."""
        expired = self._remove_expired(now)
        leader = self._leader()
        if leader is None:
            return Take(expired=expired)
        batch = pack(leader, self._lane_mates(leader), self._budget)
        return Take(batch=self._remove_all([one.slot.id for one in batch]), expired=expired)

    def can_fill(self, batch: Sequence[Planned]) -> bool:
        """Whether a queued slot fits into a batch that was already taken."""
        lane = self._lane_of(batch)
        room = self._budget.max_cost - sum(one.plan.cost for one in batch)
        if lane is None or len(batch) >= self._budget.max_items:
            return False
        return any(one.plan.cost <= room for slots in lane.waiting.values() for one in slots.values())

    def take_more(self, batch: Sequence[Planned], now: float) -> Take:
        """Remove and return slots that fit into a batch taken earlier, and expired ones as ``take``."""
        expired = self._remove_expired(now)
        lane = self._lane_of(batch)
        groups = [] if lane is None else [list(lane.waiting[one].values()) for one in _SERVING_ORDER]
        chosen = fill(batch, groups, self._budget)
        return Take(batch=self._remove_all([one.slot.id for one in chosen]), expired=expired)

    def drain(self) -> list[Planned]:
        """Remove and return everything, oldest first."""
        oldest_first = sorted(self._arrival, key=lambda slot_id: self._arrival[slot_id][0])
        return list(self._remove_all(oldest_first))

    def _lane_of(self, batch: Sequence[Planned]) -> _Lane | None:
        return self._lanes.get((batch[0].slot.encoder, batch[0].plan.bucket))

    def _remove_expired(self, now: float) -> tuple[Planned, ...]:
        return self._remove_all([one.slot.id for one in self._all() if one.slot.deadline <= now])

    def _all(self) -> Iterator[Planned]:
        for lane in self._lanes.values():
            for slots in lane.waiting.values():
                yield from slots.values()

    def _remove_all(self, slot_ids: list[str]) -> tuple[Planned, ...]:
        removed = (self.remove(slot_id) for slot_id in slot_ids)
        return tuple(planned for planned in removed if planned is not None)

    def _leader(self) -> Planned | None:
        interactive, bulk = self._oldest(Priority.INTERACTIVE), self._oldest(Priority.BULK)
        if bulk is None:
            self._since_bulk_led = 0
            return interactive
        if interactive is None or self._since_bulk_led >= self._bulk_every - 1:
            self._since_bulk_led = 0
            return bulk
        self._since_bulk_led += 1
        return interactive

    def _oldest(self, priority: Priority) -> Planned | None:
        heads = [next(iter(lane.waiting[priority].values()), None) for lane in self._lanes.values()]
        found = [one for one in heads if one is not None]
        return min(found, key=lambda one: self._arrival[one.slot.id][0], default=None)

    def _lane_mates(self, leader: Planned) -> Iterator[list[Planned]]:
        lane = self._lanes[self._arrival[leader.slot.id][1]]
        for priority in _SERVING_ORDER:
            yield [one for one in lane.waiting[priority].values() if one is not leader]


def plan_slot(slot: Slot, encoder: Plans) -> Planned | Failed:
    """The slot with its plan, or why this item fails. Never raises for a bad item."""
    if slot.piece is not None:
        return Planned(slot, slot.piece.plan)
    try:
        return Planned(slot, encoder.plan(slot.raw, slot.options))
    except EpdError as error:
        return Failed(error)
    except Exception as error:
        _log.exception("planning of slot %s raised", slot.id)
        return Failed(EncodeFailed(f"planning failed: {type(error).__name__}"))


def pack(leader: Planned, groups: Iterable[Sequence[Planned]], budget: Budget) -> list[Planned]:
    """The leader, and the slots that ``fill`` adds to it."""
    return [leader, *fill([leader], groups, budget)]


def fill(batch: Sequence[Planned], groups: Iterable[Sequence[Planned]], budget: Budget) -> list[Planned]:
    """The slots that a batch has room for; earlier groups are served before later ones.

    Inside a group it is first-fit decreasing (Johnson 1973) for one bin: by falling cost, each item that
    still fits. Equal costs keep their order, so older items go first.
    """
    chosen = list[Planned]()
    room = budget.max_cost - sum(one.plan.cost for one in batch)
    for group in groups:
        for planned in sorted(group, key=lambda one: one.plan.cost, reverse=True):
            if len(batch) + len(chosen) >= budget.max_items:
                return chosen
            if planned.plan.cost <= room:
                chosen.append(planned)
                room -= planned.plan.cost
    return chosen


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring segments of one item: their plan, and their slice of the raw's first axis."""

    plan: ItemPlan
    raw: slice


def split(plan: ItemPlan, max_cost: int) -> list[Part]:
    """Cut an item at its segments into parts of at most ``max_cost``; their rows, in order, are the item's.

    A segment attends only to itself, so it may run together with any others. A segment that costs more is a
    part by itself. An item within the cost, or one that cannot be cut, is one part. Parts without rows are
    left out: the last moments of audio may give none.
    """
    if plan.cost <= max_cost or plan.raw_step is None or len(plan.segments) < 2:
        return [Part(plan, slice(None))]
    parts, start = list[Part](), 0
    while start < len(plan.segments):
        stop, cost = start + 1, plan.segments[start]
        while stop < len(plan.segments) and cost + plan.segments[stop] <= max_cost:
            cost += plan.segments[stop]
            stop += 1
        piece = piece_of(plan, range(start, stop))
        parts += [Part(piece.plan, piece.runs[0])] if piece.plan.tokens else []
        start = stop
    return parts
