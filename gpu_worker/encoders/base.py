"""The interface between the engine and the encoder families.

An encoder has four methods. All but ``plan`` take the items of many tasks at once:

1. ``plan``: from an item's raw size to its rows, its cost and its Decode-side facts. Pure, no tensors.
2. ``preprocess``: from raw pixels or PCM on the device to the model's packed inputs.
3. ``forward``: from packed inputs to packed rows.
4. ``warm_up``: one small forward, so that the first real item is not slower than others.

The engine cuts the packed rows by the plans' ``tokens``. It knows nothing else about a family, except how a
forward can be captured (``GraphForm``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from epd.contracts.embedding import EncoderCard
from epd.contracts.media import ItemOptions, RawMedia


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeFacts:
    """What Decode must know about an item's rows, since it never sees the media. Fields as in ``Metadata``.

    ``grid_thw`` is in patches before any merge: (time, height, width). The number of rows is
    t * (h * w / ``merge_size``^2 + ``prefix_tokens``); the prefix rows come first in each time step.
    ``second_per_grid_ts`` is the seconds of video that one time step covers. ``video_timestamps`` are
    seconds, one for each sampled frame. ``audio_feature_lengths`` are valid feature frames before the
    encoder's own striding, one for each window. ``deepstack_levels`` is how many extra levels are joined to
    each row.
    """

    grid_thw: tuple[int, int, int] | None = None
    merge_size: int | None = None
    prefix_tokens: int = 0
    second_per_grid_ts: float | None = None
    video_timestamps: tuple[float, ...] | None = None
    audio_feature_lengths: tuple[int, ...] | None = None
    deepstack_levels: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemPlan:
    """What one item needs and what it gives, decided from sizes before any byte is on the device.

    ``tokens`` is the rows of the item's output. ``cost`` is what the batcher budgets: the rows that go
    through the blocks, before any merge. Items with an equal ``bucket`` may share a forward.
    ``target`` is (height, width) in pixels after resizing. ``segments`` are the parts that attend only to
    themselves (frames, windows of audio), in order, each as its share of ``cost``.

    ``raw_step`` is how many entries of the raw's first axis (frames, samples) make a segment; the last
    segment may have fewer. ``None`` means that the item cannot be cut at its segments. If it can be cut, the
    rows of a segment depend only on its own entries and on ``target``. Encoding an item in parts, and reusing
    its segments, relies on this. ``segment_tokens`` is the rows of each segment; empty if all give the same.
    """

    tokens: int
    cost: int
    bucket: Hashable
    facts: DecodeFacts = field(default_factory=DecodeFacts)
    target: tuple[int, int] | None = None
    segments: tuple[int, ...] = ()
    raw_step: int | None = None
    segment_tokens: tuple[int, ...] = ()

    def tokens_of_segments(self) -> tuple[int, ...]:
        """Output rows of each segment."""
        return self.segment_tokens or (self.tokens // len(self.segments),) * len(self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """A packed batch, ready for ``forward``.

    ``tensors`` are on the device and hold everything that a replay has to refill. ``layout`` holds facts
    about shapes that the host decided, such as segment lengths. Two batches with equal layouts and equal
    tensor shapes run exactly the same kernels.
    """

    tensors: Mapping[str, Tensor]
    layout: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Encoder(Protocol):
    """One loaded encoder on one device.

    Not thread-safe: only the thread that owns the device calls ``preprocess``, ``forward`` and ``warm_up``.
    ``plan`` may be called from any thread.
    """

    @property
    def card(self) -> EncoderCard:
        """What the rest of the system knows about this encoder."""
        ...

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """Sizes and Decode facts of one item.

        Raises:
            UnsupportedMedia: the encoder does not take this kind of media.
            MediaTooLarge, InvalidRequest: no setting of the family allows this size.
        """
        ...

    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Pack items. Each raw is uint8 [H, W, 3], uint8 [F, H, W, 3] or float32 [samples], on the device."""
        ...

    def forward(self, inputs: Inputs) -> Tensor:
        """Packed rows [sum of tokens, hidden] in the order of the plans, in the encoder's dtype."""
        ...

    def warm_up(self) -> None:
        """Run one small item through ``preprocess`` and ``forward``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRule:
    """A tensor of segment offsets, int32 [segments + 1], and the values that a capture fixes for it.

    ``lengths`` names the lengths of the same segments in ``Inputs.layout``. ``longest`` is the most units of
    a segment, or ``None`` if one segment may fill its bucket. A bucket has room for as many segments of
    ``typical`` units as fill it; a batch of more, smaller segments runs eagerly.
    """

    lengths: str
    longest: int | None
    typical: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphForm:
    """How a family's tensors grow with their batch.

    ``units`` names the tensor whose first axis counts units. Other tensors have the same first axis, except
    for three kinds, all by tensor name: ``indices`` hold int64 row indices, one for so many units;
    ``segments`` hold offsets; ``per_segment`` hold one entry for each segment of the named offsets.
    Buckets are multiples of ``multiple`` from ``smallest`` units on.

    The forward gives its rows in the order of the units, the same number for each unit. If the numbers
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
        """The tensor that the number of output rows follows."""
        return self.output or self.units


@runtime_checkable
class Capturable(Encoder, Protocol):
    """An encoder whose forward can be captured: no shape depends on data, and nothing is read back."""

    @property
    def graph_form(self) -> GraphForm:
        """How its tensors grow with the batch."""
        ...

    def sample(self) -> Inputs:
        """The inputs of one small item, as from ``preprocess``."""
        ...
