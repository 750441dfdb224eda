"""Which lane comes first in a pop: interactive before bulk, each queue in turn, and bulk never starves."""

from __future__ import annotations

from collections.abc import Sequence

#: Every this many pops the steps are walked from the far end, so bulk gets at least 1/8 under any load.
BULK_EVERY = 8


def lane_order(
    queues: Sequence[str], steps: Sequence[int], *, turn: int, bulk_every: int = BULK_EVERY
) -> list[tuple[str, int]]:
    """Pairs (queue, priority step) in the order in which pop number ``turn`` takes from them.

    Step 0 is the most urgent, as in kombu's Redis transport. ``turn`` counts from 0.
    """
    if not queues:
        return []
    first = turn % len(queues)
    rotated = [*queues[first:], *queues[:first]]
    bulk_first = len(steps) > 1 and turn % bulk_every == bulk_every - 1
    walked = sorted(steps, reverse=bulk_first)
    return [(queue, step) for step in walked for queue in rotated]
