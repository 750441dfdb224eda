"""Some segments of an item: what they take of its raw media, and a plan as if they were an item. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the plan's module holds tensor types, which the pure modules must not load
    from gpu_worker.encoders.base import ItemPlan


@dataclass(frozen=True, slots=True)
class Piece:
    """Segments of one item in their order. ``runs`` of the raw's first axis, joined, are their raw media."""

    plan: ItemPlan
    runs: tuple[slice, ...]


def piece_of(plan: ItemPlan, wanted: Sequence[int]) -> Piece:
    """The piece of these segments, in rising order; its facts of sizes are its own, all others stay.

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
    """Neighbours together, so that what lies side by side is copied at once."""
    start = 0
    for at, index in enumerate(wanted):
        if at + 1 == len(wanted) or wanted[at + 1] != index + 1:
            yield slice(wanted[start] * step, (index + 1) * step)
            start = at + 1
