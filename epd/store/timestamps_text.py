"""Timestamps of frames, as short as they can be read back to the last bit.

A file counts time in ticks: 1/12800 s, say. Frames that are taken evenly are then runs of equal steps, and a
run is two numbers, however long. Half an hour at two frames a second takes 30 bytes instead of 30 KB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, chain, groupby, pairwise, repeat
from typing import Any

#: Ticks a second beyond which times are left as they are; real files have at most a million.
_MOST_TICKS = 10_000_000
#: Times at either end that the ticks are guessed from. The guess is checked with every one.
_LOOKED_AT = 4
#: Ticks that a 64-bit float counts exactly. A broken file may have later times; they are left as they are.
_LAST_TICK = 1 << 53


def pack_times(times: Sequence[float]) -> Any:
    """Times in seconds as a JSON value: {"s": ticks a second, "r": [step, how often, ...]}, or a list."""
    scale = _scale_of(times)
    if any(abs(time) > _LAST_TICK / scale for time in times):
        return list(times)
    ticks = [round(time * scale) for time in times]
    if any(tick / scale != time for tick, time in zip(ticks, times, strict=True)):
        return list(times)
    steps = (after - before for before, after in pairwise([0, *ticks]))
    runs = ((step, sum(1 for _ in group)) for step, group in groupby(steps))
    return {"s": scale, "r": list(chain.from_iterable(runs))}


def unpack_times(value: Any) -> Any:
    """What ``pack_times`` was given; a list comes back as it is.

    Raises:
        ValueError: it is no packed value.
    """
    if not isinstance(value, dict):
        return value
    try:
        scale, runs = value["s"], value["r"]
        steps = chain.from_iterable(
            repeat(step, count) for step, count in zip(runs[::2], runs[1::2], strict=True)
        )
        return [tick / scale for tick in accumulate(steps)]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"timestamps cannot be read: {error}") from error


def _scale_of(times: Sequence[float]) -> int:
    """Ticks a second in which the times may be whole numbers; 1 where there is no such guess."""
    seen = [*times[:_LOOKED_AT], *times[-_LOOKED_AT:]]
    scale = math.lcm(*(Fraction(time).limit_denominator(1_000_000).denominator for time in seen))
    return scale if scale <= _MOST_TICKS else 1
