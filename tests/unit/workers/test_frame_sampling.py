"""The frame rule against a plain copy of qwen-vl-utils' arithmetic, and its properties on any clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.contracts.embedding import VideoRules
from epd.contracts.media import ItemOptions
from workers.decode.sampling import Timeline, choose_frames, effective_rules, frame_count

QWEN = VideoRules(fps=2, min_frames=4, max_frames=768, frame_multiple=2)


def steady(total: int, rate: float) -> Timeline:
    return Timeline(tuple(index / rate for index in range(total)), rate)


def reference_count(total: int, rate: float, rules: VideoRules) -> int:
    """``smart_nframes`` for an even clock, as its formula reads."""
    unit = rules.frame_multiple
    least = math.ceil(rules.min_frames / unit) * unit
    most = math.floor(min(rules.max_frames, total) / unit) * unit
    wanted = total / rate * rules.fps
    return math.floor(min(max(wanted, least), most, total) / unit) * unit


@pytest.mark.parametrize("rate", [8, 10, 24, 25, 30, 30000 / 1001, 60])
def test_counts_equal_the_reference(rate: float) -> None:
    for total in range(2, 2500, 7):
        assert frame_count(total, total / rate, QWEN) == reference_count(total, rate, QWEN)


def test_indices_are_the_rounded_even_places() -> None:
    assert choose_frames(steady(40, 8), QWEN) == (0, 4, 9, 13, 17, 22, 26, 30, 35, 39)
    assert choose_frames(steady(32, 30000 / 1001), QWEN) == (0, 10, 21, 31)
    assert choose_frames(steady(3, 1), QWEN) == (0, 2)


@given(
    total=st.integers(1, 3000),
    rate=st.floats(0.5, 120),
    fps=st.floats(0.1, 30),
    unit=st.sampled_from([1, 2, 4]),
)
def test_any_even_clock(total: int, rate: float, fps: float, unit: int) -> None:
    rules = VideoRules(fps=fps, min_frames=4, max_frames=64, frame_multiple=unit)
    chosen = choose_frames(steady(total, rate), rules)
    assert len(chosen) % unit == 0
    assert 1 <= len(chosen) <= max(64, unit)
    assert chosen[0] == 0
    assert chosen[-1] <= total - 1
    assert list(chosen) == sorted(chosen)
    if len(chosen) > 1 and total >= unit:
        assert chosen[-1] == total - 1


@given(st.lists(st.floats(0.001, 5), min_size=2, max_size=200))
def test_any_uneven_clock(gaps: list[float]) -> None:
    times = tuple(float(time) for time in np.concatenate([[0.0], np.cumsum(gaps)]))
    timeline = Timeline(times, 10.0)
    chosen = choose_frames(timeline, QWEN)
    assert len(chosen) % 2 == 0
    assert list(chosen) == sorted(chosen)
    assert chosen[0] == 0
    assert chosen[-1] <= len(times) - 1
    if timeline.rate is None and len(chosen) < len(times):
        for moment, index in zip(np.linspace(0, times[-1], len(chosen)), chosen, strict=True):
            nearest = min(abs(time - moment) for time in times)
            assert abs(times[index] - moment) <= nearest + 1e-9


def test_millisecond_clocks_count_as_even() -> None:
    """Matroska rounds to a millisecond; 240 frames at 24 a second stay 20 samples, not 18."""
    times = tuple(round(index / 24, 3) for index in range(240))
    timeline = Timeline(times, 24.0)
    assert timeline.rate == 24.0
    assert timeline.duration == pytest.approx(10.0)
    assert len(choose_frames(timeline, QWEN)) == 20


def test_a_wrong_frame_rate_in_the_header_is_ignored() -> None:
    timeline = Timeline(tuple(index / 10 for index in range(50)), 1000.0)
    assert timeline.rate == pytest.approx(10.0)
    assert timeline.duration == pytest.approx(5.0)


def test_all_frames_are_taken_once_where_all_are_wanted() -> None:
    uneven = Timeline((0.0, 0.1, 0.2, 3.0), 10.0)
    assert choose_frames(uneven, VideoRules(fps=60, min_frames=1, max_frames=99)) == (0, 1, 2, 3)
    assert choose_frames(Timeline((0.0,)), QWEN) == (0, 0)


def test_given_options_override_the_rule() -> None:
    rules = effective_rules(QWEN, ItemOptions(fps=1, max_frames=8))
    assert (rules.fps, rules.min_frames, rules.max_frames, rules.frame_multiple) == (1, 4, 8, 2)
    assert effective_rules(QWEN, ItemOptions()) == QWEN
