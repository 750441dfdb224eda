"""Buckets: the shapes that are captured. Pure: sizes only, no tensor.

A bucket holds every value that a capture bakes in: its units, how many segments its offsets have room for,
and the longest segment. Batches are padded up to a bucket; padding is cut into segments of its own, so that
no real row attends to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_worker.encoders.graph_form import GraphForm

#: Segments that a bucket has room for besides those of the typical length: padding, and a few small items.
_SPARE_SEGMENTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRoom:
    """Room for ``count`` segments of at most ``longest`` units each, under the name of their offsets."""

    name: str
    count: int
    longest: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One captured shape; equal buckets run the very same kernels."""

    units: int
    segments: tuple[SegmentRoom, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch asks of a bucket: units, and the segments' lengths by the name of their offsets."""

    units: int
    segments: Mapping[str, tuple[int, ...]]


def ladder(smallest: int, largest: int, *, multiple: int, steps: int) -> list[int]:
    """Rising sizes from ``smallest`` to ``largest``, ``steps`` to each doubling, in multiples.

    A batch that is larger than one size and smaller than the next is padded by less than 1 / ``steps`` of
    itself, once sizes are ``steps`` multiples or more. Both ends are rounded to multiples, the upper one
    down; nothing where that leaves no size.
    """
    most = largest // multiple
    sizes, size = list[int](), max(1, -(-smallest // multiple))
    while size <= most:
        sizes.append(size * multiple)
        octave = 1 << (size.bit_length() - 1)
        size += max(1, octave // steps)
    if most >= 1 and sizes and sizes[-1] != most * multiple:
        sizes.append(most * multiple)
    return sizes


def make_bucket(form: GraphForm, units: int) -> Bucket:
    """The bucket of so many units: room for segments of the typical length, and a few more."""
    rooms = (
        SegmentRoom(
            name=name,
            count=-(-units // rule.typical) + _SPARE_SEGMENTS,
            longest=min(rule.longest or units, units),
        )
        for name, rule in form.segments.items()
    )
    return Bucket(units, tuple(rooms))


def fits(load: Load, bucket: Bucket) -> bool:
    """Whether a batch and its padding can be laid out in a bucket."""
    padding = bucket.units - load.units
    if padding < 0:
        return False
    for room in bucket.segments:
        lengths = load.segments[room.name]
        if max(lengths, default=0) > room.longest:
            return False
        if len(lengths) + -(-padding // room.longest) > room.count:
            return False
    return True


def smallest_fit(load: Load, buckets: Iterable[Bucket]) -> Bucket | None:
    """The bucket of the fewest units that takes a batch."""
    return min((one for one in buckets if fits(load, one)), key=lambda one: one.units, default=None)
