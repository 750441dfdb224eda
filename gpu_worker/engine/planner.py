"""Planning of one item and packing of one batch. Pure: no torch, no clock, no socket."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epd.contracts.errors import EncodeFailed, EpdError
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.engine.piece import piece_of
from gpu_worker.engine.slot import Failed, Planned, Slot

if TYPE_CHECKING:
    from gpu_worker.encoders.base import ItemPlan

_log = logging.getLogger(__name__)


class Plans(Protocol):
    """The part of an encoder that planning needs."""

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """Sizes and Decode facts of one item."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Bounds of one batch: how many items, and how much cost in the encoders' own unit.

    An item that alone costs more than ``max_cost`` is a batch of its own, run in parts (``split``).
    """

    max_items: int
    max_cost: int

    def __post_init__(self) -> None:
        """Raises ``ValueError`` where no batch could ever be formed."""
        if self.max_items < 1 or self.max_cost < 1:
            raise ValueError(f"a batch needs room for one item, not {self}")


def plan_slot(slot: Slot, encoder: Plans) -> Planned | Failed:
    """The slot's plan, or why this item alone fails. Never raises for a bad item."""
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
    """The leader and what fits beside it, as ``fill`` chooses."""
    return [leader, *fill([leader], groups, budget)]


def fill(batch: Sequence[Planned], groups: Iterable[Sequence[Planned]], budget: Budget) -> list[Planned]:
    """What fits beside the slots of a batch; earlier groups are served before later ones.

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
    """Neighbouring segments of one item: their plan, and what they take of the raw's first axis."""

    plan: ItemPlan
    raw: slice


def split(plan: ItemPlan, max_cost: int) -> list[Part]:
    """Cut an item at its own segments into parts within a cost, in order; their rows join to the item's.

    A segment attends only to itself, so it may be run with any others. One that alone costs more is a part
    of its own. An item that is within the cost, or that cannot be cut, is one part. A part without rows is
    left out: the last moments of a sound may give none.
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
