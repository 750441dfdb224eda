"""When a replay pays: timings from the warm-up, and the rule that picks replay or eager. Pure.

A replay costs the same however full its bucket is; an eager run costs what its own size costs, plus
launches. On a large batch the padding can cost more than the launches: +25 % to +85 % was measured by
sglang-omni for Whisper at 3 to 17 windows (its pull request 973).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of one forward of a full bucket, both ways."""

    units: int
    replay: float
    eager: float


class Calibration:
    """The timings of one encoder's buckets."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        self._timings = {one.units: one for one in sorted(timings, key=lambda one: one.units)}

    def eager_seconds(self, units: int) -> float:
        """What an eager run of so many units takes: on the line between the two measured sizes around it.

        Below the smallest size it is the smallest's: such a run is made of launches.
        """
        points = list(self._timings.values())
        above = next((one for one in points if one.units >= units), points[-1])
        below = next((one for one in reversed(points) if one.units <= units), above)
        if above.units == below.units:
            return above.eager
        share = (units - below.units) / (above.units - below.units)
        return below.eager + share * (above.eager - below.eager)

    def pays(self, bucket_units: int, units: int) -> bool:
        """Whether replaying the bucket for so many units is no slower than running them eagerly."""
        return self._timings[bucket_units].replay <= self.eager_seconds(units)

    def least_units(self, bucket_units: int) -> int | None:
        """From how many units on the bucket pays; None: never, it is slower even when full."""
        smaller = max((units for units in self._timings if units < bucket_units), default=0)
        return next((n for n in range(smaller + 1, bucket_units + 1) if self.pays(bucket_units, n)), None)
