"""Buckets, the shapes that are captured, and the static buffers that batches are copied to.

A bucket holds every value that a capture fixes: its units, how many segments its offsets have room for, and
the longest segment. Batches are padded up to a bucket. Padding has segments of its own, so that no real row
attends to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.encoders.base import GraphForm, Inputs

#: Extra segments of a bucket, besides those of the typical length: for padding, and a few small items.
_SPARE_SEGMENTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRoom:
    """Room for ``count`` segments of at most ``longest`` units each. ``name`` is that of their offsets."""

    name: str
    count: int
    longest: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """One captured shape. Equal buckets run exactly the same kernels."""

    units: int
    segments: tuple[SegmentRoom, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch needs of a bucket: units, and segment lengths by the name of their offsets."""

    units: int
    segments: Mapping[str, tuple[int, ...]]


def ladder(smallest: int, largest: int, *, multiple: int, steps: int) -> list[int]:
    """Rising sizes from ``smallest`` to ``largest``, ``steps`` to each doubling, in multiples.

    From ``steps`` multiples on, a batch between two sizes is padded by less than 1 / ``steps`` of itself.
    ``smallest`` is rounded up to a multiple, ``largest`` down. Empty if that leaves no size.
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
    """The bucket of so many units, with room for segments of the typical length and a few more."""
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
    """Whether a bucket has room for a batch and its padding."""
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
    """The bucket with the fewest units that a batch fits into, or ``None``."""
    return min((one for one in buckets if fits(load, one)), key=lambda one: one.units, default=None)


class StaticBuffers:
    """Tensors for the largest bucket of an encoder. For one thread, and one stream of the device."""

    def __init__(self, form: GraphForm, sample: Inputs, largest: Bucket) -> None:
        self._form = form
        self._whole = {
            name: tensor.new_zeros((self.length(name, largest), *tensor.shape[1:]))
            for name, tensor in sample.tensors.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._whole.values())

    def view(self, bucket: Bucket) -> dict[str, Tensor]:
        """The tensors that this bucket's forward reads: views of the same memory each time."""
        return {name: tensor[: self.length(name, bucket)] for name, tensor in self._whole.items()}

    def fill(self, bucket: Bucket, inputs: Inputs) -> None:
        """Copy a batch that fits to the buffers, and pad it. Nothing is read back from the device."""
        units = inputs.tensors[self._form.units].shape[0]
        rooms = {room.name: room for room in bucket.segments}
        for name, static in self.view(bucket).items():
            given = inputs.tensors[name]
            static[: given.shape[0]].copy_(given)
            tail = static[given.shape[0] :]
            if name in rooms:
                step = self._padding_step(rooms[name], tail.numel(), bucket.units - units)
                _end_offsets(tail, first=units, step=step, last=bucket.units)
            elif name in self._form.indices:
                _count_up(tail, given.shape[0], 1)
            else:
                tail.zero_()

    def length(self, name: str, bucket: Bucket) -> int:
        """The first axis of a tensor in a bucket."""
        counts = {room.name: room.count for room in bucket.segments}
        if name in counts:
            return counts[name] + 1
        if name in self._form.per_segment:
            return counts[self._form.per_segment[name]]
        return bucket.units // self._form.indices.get(name, 1)

    def _padding_step(self, room: SegmentRoom, free: int, padding: int) -> int:
        """Units of each segment of padding: the typical number, or more if too few segments are free.

        The attention of a row costs as much as its segment is long, so padding is not one long segment.
        """
        least = -(-padding // free) if free else 1
        return min(room.longest, max(self._form.segments[room.name].typical, least))


def load_of(form: GraphForm, inputs: Inputs) -> Load:
    """What a batch needs of a bucket, from shapes and the host's layout only."""
    segments: Mapping[str, tuple[int, ...]] = {
        name: inputs.layout[rule.lengths] for name, rule in form.segments.items()
    }
    return Load(inputs.tensors[form.units].shape[0], segments)


def _end_offsets(tail: Tensor, *, first: int, step: int, last: int) -> None:
    """Write the ends of the segments of padding, then of empty ones."""
    _count_up(tail, first + step, step)
    tail.clamp_(max=last)


def _count_up(tail: Tensor, first: int, step: int) -> None:
    if tail.numel():
        torch.arange(first, first + step * tail.numel(), step, out=tail)
