"""Whether a figure is flat: its least-squares line over the second half of the run may rise only so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.chaos.soak.sample import Sample

#: How far a figure may rise within the second half, as a share of its mean there.
SHARE = 0.05
#: And at least so far, by the ending of its name: what a busy moment adds to a small figure.
FLOOR = {
    "_rss_mib": 10.0,
    "_fds": 6.0,
    "_clients": 4.0,
    "_keys": 60.0,
    "_used_mib": 1.0,
    "_files": 40.0,
    "_mib": 2.0,
}


@dataclass(frozen=True, slots=True)
class Trend:
    """A figure over the soak, in its own unit. ``rise`` is what the line adds over the second half."""

    start: float
    end: float
    per_hour: float
    rise: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """Within its bound."""
        return self.rise <= self.bound


def trends(samples: Sequence[Sample]) -> dict[str, Trend]:
    """A trend for each figure that every sample has; two samples at least."""
    names = set.intersection(*(set(sample.figures) for sample in samples))
    return {name: _trend(name, samples) for name in sorted(names)}


def _trend(name: str, samples: Sequence[Sample]) -> Trend:
    """The first half is warm-up: pools fill, caches and arenas reach their size."""
    late = samples[len(samples) // 2 - 1 :]
    times = np.array([sample.at for sample in late])
    values = np.array([sample.figures[name] for sample in late])
    slope = float(np.polyfit(times, values, 1)[0])
    floor = next(value for ending, value in FLOOR.items() if name.endswith(ending))
    return Trend(
        start=samples[0].figures[name],
        end=samples[-1].figures[name],
        per_hour=round(slope * 3600, 1),
        rise=round(slope * float(times[-1] - times[0]), 2),
        bound=round(max(floor, SHARE * float(values.mean())), 2),
    )
