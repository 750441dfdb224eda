"""The sizes of buckets, what fits into one, and when a replay pays: pure rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.encoders.base import GraphForm, SegmentRule
from gpu_worker.engine.graphs.buckets import (
    Bucket,
    Load,
    SegmentRoom,
    fits,
    ladder,
    make_bucket,
    smallest_fit,
)
from gpu_worker.engine.graphs.graph_set import Calibration, Timing


def test_the_ladder_is_fine_where_sizes_are_small() -> None:
    sizes = ladder(1, 32, multiple=1, steps=4)
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    assert ladder(256, 1000, multiple=64, steps=4) == [256, 320, 384, 448, 512, 640, 768, 896, 960]
    assert ladder(256, 100, multiple=64, steps=4) == []


@given(
    smallest=st.integers(1, 300), largest=st.integers(1, 20_000),
    multiple=st.sampled_from([1, 4, 64]), steps=st.integers(1, 8),
)  # fmt: skip
def test_the_ladder_rises_in_multiples_up_to_its_end(
    smallest: int, largest: int, multiple: int, steps: int
) -> None:
    sizes = ladder(smallest, largest, multiple=multiple, steps=steps)
    assert sizes == sorted(set(sizes))
    assert all(size % multiple == 0 and size <= largest for size in sizes)
    if sizes:
        assert sizes[-1] == largest // multiple * multiple
    for below, above in pairwise(sizes):
        assert above - below <= max(multiple, below / steps)


ROOM = Bucket(100, (SegmentRoom(name="offsets", count=4, longest=40),))


@pytest.mark.parametrize(
    ("units", "lengths", "expected"),
    [
        (100, (40, 40, 20), True),
        (101, (40, 40, 21), False),
        (60, (30, 30), True),  # padding of 40 is one more segment
        (60, (20, 20, 20), True),
        (50, (20, 20, 10), False),  # padding of 50 needs two, and there is one left
        (50, (50,), False),  # longer than what the capture was made for
    ],
)
def test_a_batch_fits_with_its_padding(units: int, lengths: tuple[int, ...], expected: bool) -> None:
    assert fits(Load(units, {"offsets": lengths}), ROOM) is expected


def test_the_smallest_bucket_that_fits_is_chosen() -> None:
    form = GraphForm(
        units="rows", segments={"offsets": SegmentRule(lengths="frames", longest=None, typical=64)}
    )
    buckets = [make_bucket(form, units) for units in (64, 128, 256)]
    chosen = smallest_fit(Load(100, {"offsets": (60, 40)}), buckets)
    assert chosen is not None
    assert chosen.units == 128
    # Many small segments need more room than the units alone would.
    many = smallest_fit(Load(60, {"offsets": (12,) * 5}), buckets)
    assert many is not None
    assert many.units == 256
    assert smallest_fit(Load(60, {"offsets": (2,) * 30}), buckets) is None
    assert smallest_fit(Load(257, {"offsets": (257,)}), buckets) is None


def test_eager_is_chosen_where_padding_costs_more_than_launches() -> None:
    launch_bound = [Timing(units=1, replay=1.0, eager=5.0), Timing(units=4, replay=3.0, eager=6.0)]
    compute_bound = Timing(units=8, replay=12.0, eager=12.4)
    calibration = Calibration([*launch_bound, compute_bound])
    assert calibration.eager_seconds(6) == pytest.approx(9.2)
    assert calibration.pays(4, 2)
    assert not calibration.pays(8, 6)
    assert calibration.pays(8, 8)
    assert [calibration.least_units(units) for units in (1, 4, 8)] == [1, 2, 8]


def test_a_replay_that_is_slower_when_full_is_never_chosen() -> None:
    assert Calibration([Timing(units=4, replay=2.0, eager=1.0)]).least_units(4) is None
