"""The one seam between the engine and every encoder family.

An encoder does four things, each for a list of items of many tasks at once:

1. ``plan``: from an item's raw size to its rows, its cost and its Decode-side facts. Pure, no tensor.
2. ``preprocess``: from raw pixels or PCM on the device to the model's packed inputs.
3. ``forward``: from packed inputs to packed rows.
4. ``warm_up``: one small forward, so that the first real item pays for nothing.

The engine cuts the packed rows with the plans' ``tokens``; nothing else about a family leaks out.
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
    """What Decode must know of an item's rows instead of seeing the media; fields as in ``Metadata``.

    ``grid_thw`` is in patches before any merge: (time, height, width). Rows are
    t * (h * w / ``merge_size``^2 + ``prefix_tokens``): the prefix rows come first in each step of time.
    ``second_per_grid_ts`` is the seconds of video that one step of time covers; ``video_timestamps`` are
    seconds, one a sampled frame. ``audio_feature_lengths`` are valid feature frames, before the encoder's
    own striding, one a window. ``deepstack_levels`` is how many extra levels are joined to each row.
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
    """What one item will need and give; decided from sizes alone, before any byte is on the device.

    ``tokens`` is the rows of the item's output; ``cost`` is what the batcher budgets: the rows that go
    through the blocks, before any merge. Items with an equal ``bucket`` may share a forward.
    ``target`` is (height, width) in pixels after resizing. ``segments`` are the parts that attend only to
    themselves (frames, windows of sound), in order, by their share of ``cost``.

    ``raw_step``: entries of the raw's first axis (frames, samples) that a segment is made of; the last may
    have fewer. None: the item cannot be cut at its segments. Where it can, what a segment gives depends on
    nothing but its own entries and ``target``: that is what parts, and reuse, of segments rest on.
    ``segment_tokens``: rows of the output that each segment gives; left out where all give the same.
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
        """Rows of the output by segment."""
        return self.segment_tokens or (self.tokens // len(self.segments),) * len(self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """A packed batch, ready for ``forward``.

    ``tensors`` live on the device and hold all that a replay must refill. ``layout`` holds facts about
    shapes that the host decided (segment lengths and the like); two batches with equal layouts and equal
    tensor shapes run the very same kernels, so it belongs into a captured graph's key.
    """

    tensors: Mapping[str, Tensor]
    layout: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Encoder(Protocol):
    """One loaded encoder on one device.

    Not thread-safe: one thread owns the device and calls ``preprocess``, ``forward`` and ``warm_up``.
    ``plan`` may be called from any thread.
    """

    @property
    def card(self) -> EncoderCard:
        """What the rest of the system knows about this encoder."""
        ...

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """Sizes and Decode facts of one item.

        Raises ``UnsupportedMedia`` for a media kind that the encoder does not take, ``MediaTooLarge`` or
        ``InvalidRequest`` for sizes that no setting of the family allows.
        """
        ...

    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Pack items: each raw is uint8 [H, W, 3], uint8 [F, H, W, 3] or float32 [samples], on the device."""
        ...

    def forward(self, inputs: Inputs) -> Tensor:
        """Packed rows [sum of tokens, hidden] in the order of the plans, in the encoder's dtype."""
        ...

    def warm_up(self) -> None:
        """Run one small item through ``preprocess`` and ``forward``."""
        ...


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
