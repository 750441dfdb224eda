"""What an encoder says of its inputs so that its forward can be captured once and replayed for other batches.

A *unit* is what a bucket counts: a picture, a window of sound, or a row of packed patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from gpu_worker.encoders.base import Encoder, Inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRule:
    """Offsets of segments on the device, int32 [segments + 1], and what a capture bakes in of them.

    ``lengths`` names the same segments' lengths in ``Inputs.layout``. ``longest`` is the most units that a
    segment has, or None where one may fill its bucket. ``typical`` units a segment decide how many segments
    a bucket has room for; a batch of more, smaller ones is served eagerly.
    """

    lengths: str
    longest: int | None
    typical: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphForm:
    """How a family's tensors grow with their batch.

    ``units`` names the tensor whose first axis counts units. Other tensors have that axis too, except
    ``indices``: int64 places of rows, one for so many units; ``segments``: offsets, by tensor name; and
    ``per_segment``: tensors of one entry a segment, with the name of its offsets.
    Buckets are multiples of ``multiple`` from ``smallest`` units on.

    The forward must give its rows in the order of the units, the same number for each. Where the numbers
    differ, ``output`` names the tensor whose first axis grows with the rows.
    """

    units: str
    smallest: int = 1
    multiple: int = 1
    indices: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[str, SegmentRule] = field(default_factory=dict)
    per_segment: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None

    @property
    def paced(self) -> str:
        """The tensor whose first axis the forward's rows grow with."""
        return self.output or self.units


@runtime_checkable
class Capturable(Encoder, Protocol):
    """An encoder whose forward reads nothing back from the device and has no shape that depends on data."""

    @property
    def graph_form(self) -> GraphForm:
        """How its inputs grow."""
        ...

    def sample(self) -> Inputs:
        """Inputs of one small item, as ``preprocess`` gives them."""
        ...
