"""Timestamps in an index entry: the same to the last bit, and short where frames are taken evenly."""

from __future__ import annotations

from fractions import Fraction

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.store.cache.entry import pack_times, unpack_times

#: Ticks a second of mp4, matroska, transport streams and GIFs, and NTSC's rate.
BASES = [
    Fraction(1, 12_800),
    Fraction(1, 1000),
    Fraction(1, 90_000),
    Fraction(1, 100),
    Fraction(1001, 30_000),
]


def _text(times: list[float]) -> bytes:
    return orjson.dumps(pack_times(times))


def _back(times: list[float]) -> list[float]:
    return unpack_times(orjson.loads(_text(times)))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("step", [1, 15, 50, 6400, 7])
def test_even_times_are_one_run(base: Fraction, step: int) -> None:
    times = [float(step * number * base) for number in range(3600)]
    assert _back(times) == times
    assert len(_text(times)) < 50


@given(
    st.sampled_from(BASES),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=40),
)
def test_times_of_files_come_back(base: Fraction, steps: list[int]) -> None:
    times, tick = [], 0
    for step in steps:
        tick += step
        times.append(float(tick * base))
    assert _back(times) == times


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_any_times_come_back(times: list[float]) -> None:
    assert _back(times) == times


@pytest.mark.parametrize(
    "times", [[0.0], [1 / 3, 1e-9, 0.1], [0.0, 0.0], [5.0, 1.0], [1e308], [0.5, 1e16], [-1e19, 0.1]]
)
def test_odd_times_come_back(times: list[float]) -> None:
    assert _back(times) == times


BROKEN = [{}, {"s": 0, "r": [1, 1]}, {"s": 1}, {"s": 1, "r": [1]}, {"s": "a", "r": [1, 1]}, {"s": 1, "r": 1}]


@pytest.mark.parametrize("value", BROKEN)
def test_what_is_no_packed_value_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpack_times(value)
