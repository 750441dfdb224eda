"""Axes of a plot: where a value lies, and which values are labelled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = 5


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, over pixels from ``start`` to ``stop``."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return self.start + (self._scaled(value) - low) / (high - low) * (self.stop - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.log else value


def linear(values: Iterable[float], start: float, stop: float) -> Axis:
    """An axis from 0 to a round number that is not below any value."""
    step = _round_step(max([*values, 0.0]) / _TICKS or 1.0)
    count = math.ceil(max([*values, 0.0]) / step - 1e-9) or 1
    ticks = tuple(number * step for number in range(count + 1))
    return Axis(0.0, ticks[-1], start, stop, ticks)


def logarithmic(values: Iterable[float], start: float, stop: float) -> Axis:
    """An axis between numbers of the series 1, 2, 5, 10 that enclose all values, which must be positive."""
    found = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    series = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    low = max(one for one in series if one <= min(found))
    high = min(one for one in series if one >= max(found) and one > low)
    return Axis(low, high, start, stop, tuple(one for one in series if low <= one <= high), log=True)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10, ... times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= least * (1 - 1e-9))


def number(value: float) -> str:
    """A number with at most three digits that count, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
