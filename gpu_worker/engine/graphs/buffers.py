"""The static tensors that captured forwards read: a set for each encoder; smaller buckets are its front.

They keep what the last batch left in them, so each fill writes all that the bucket's forward will read:
padding rows are zero, padding is its own segments, padding indices point at padding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gpu_worker.encoders.base import Inputs
from gpu_worker.encoders.graph_form import GraphForm
from gpu_worker.engine.graphs.bucket import Bucket, Load, SegmentRoom


class StaticBuffers:
    """Tensors for the largest bucket of an encoder. One thread, and one stream of the device, uses them."""

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
        """The tensors that this bucket's forward reads; the same memory each time."""
        return {name: tensor[: self.length(name, bucket)] for name, tensor in self._whole.items()}

    def fill(self, bucket: Bucket, inputs: Inputs) -> None:
        """Copy a batch that fits in, and pad it. Nothing is read back from the device."""
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
        """First axis of a tensor in a bucket."""
        counts = {room.name: room.count for room in bucket.segments}
        if name in counts:
            return counts[name] + 1
        if name in self._form.per_segment:
            return counts[self._form.per_segment[name]]
        return bucket.units // self._form.indices.get(name, 1)

    def _padding_step(self, room: SegmentRoom, free: int, padding: int) -> int:
        """Units of each segment of padding: the typical number, or more where too few segments are free.

        Attention costs a row as much as its segment is long, so padding is not left in one piece.
        """
        least = -(-padding // free) if free else 1
        return min(room.longest, max(self._form.segments[room.name].typical, least))


def load_of(form: GraphForm, inputs: Inputs) -> Load:
    """What a batch asks of a bucket; read from shapes and the host's layout only."""
    segments: Mapping[str, tuple[int, ...]] = {
        name: inputs.layout[rule.lengths] for name, rule in form.segments.items()
    }
    return Load(inputs.tensors[form.units].shape[0], segments)


def _end_offsets(tail: Tensor, *, first: int, step: int, last: int) -> None:
    """Ends of the segments of padding, and then of empty ones."""
    _count_up(tail, first + step, step)
    tail.clamp_(max=last)


def _count_up(tail: Tensor, first: int, step: int) -> None:
    if tail.numel():
        torch.arange(first, first + step * tail.numel(), step, out=tail)
