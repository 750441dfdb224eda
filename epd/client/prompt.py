"""Calculations on a prompt with media: what a prefix cache leaves to fetch, and the mrope position delta.

A Prefill node whose cache covers the first ``offset`` tokens of a prompt needs no row of an item that ends
before the offset, the remaining rows of an item that crosses it, and every row of an item after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from epd.contracts.embedding import Metadata
from epd.contracts.errors import InvalidRequest
from epd.contracts.handoff import Handoff, HandoffItem, HandoffRequest, Placed, Placement, Slice
from epd.contracts.media import Modality

Item = Placement | HandoffItem
#: The multimodal layout of a prompt: a request, a handoff, or the items of either.
Layout = HandoffRequest | Handoff | Sequence[Item]


@dataclass(frozen=True, slots=True)
class Across:
    """An item that crosses the offset: its rows [start, stop) are still needed."""

    item: Item
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Split:
    """The items of a prompt before, across and after a token offset, in the order of the prompt."""

    before: tuple[Item, ...]
    across: tuple[Across, ...]
    after: tuple[Item, ...]

    def needed(self) -> list[Slice]:
        """The rows that are still needed, in the order of the prompt, for ``Client.slices``.

        Items without placeholders (a decoder reads them by cross-attention) are needed whole.
        """
        cut = [(part.item.offset, Slice(key=part.item.key, start=part.start)) for part in self.across]
        whole = [(item.offset, Slice(key=item.key)) for item in self.after]
        return [part for _, part in sorted(cut + whole, key=lambda pair: pair[0])]


def split_by_offset(request: Layout, offset: int) -> Split:
    """Split the items of a prompt into those wholly before, across and after ``offset`` tokens.

    An item that ends at the offset is before it; one that begins there is after it. An item without
    placeholders is placed by its own offset.

    Raises:
        InvalidRequest: the offset is negative.
    """
    if offset < 0:
        raise InvalidRequest(f"offset: {offset} is negative")
    before: list[Item] = []
    across: list[Across] = []
    after: list[Item] = []
    for item in _items(request):
        done = rows_before(item, offset)
        if done == item.length and item.offset < offset:
            before.append(item)
        elif done == 0:
            after.append(item)
        else:
            across.append(Across(item, done, item.length))
    return Split(tuple(before), tuple(across), tuple(after))


def rows_before(item: Item, offset: int) -> int:
    """The number of an item's placeholders before ``offset``; its first rows, which need not be fetched."""
    return sum(min(length, max(0, offset - first)) for first, length in item.runs)


def _items(request: Layout) -> Sequence[Item]:
    return request.items if isinstance(request, HandoffRequest | Handoff) else request


def position_delta(
    placed: Sequence[Placed],
    metadata: Sequence[Metadata],
    *,
    prompt_tokens: int,
    tokens_per_second: float | None = None,
) -> int:
    """The mrope position delta of a prompt: its highest position + 1 - its number of tokens.

    Args:
        placed: the items in the order of the prompt; audio items may be left out.
        metadata: the metadata of each item.
        prompt_tokens: the length of the prompt, placeholders included.
        tokens_per_second: from Qwen2.5-VL's vision config; the other families have none.

    A video with ``spans`` (Qwen3-VL) counts as an image of one time step in each span.

    Raises:
        InvalidRequest: the grid of an item does not match its placeholders, or it has no grid.
    """
    saved, highest = 0, -1
    for place, known in _in_order(placed, metadata):
        for (offset, length), (t, h, w), interval in _images(place, known, tokens_per_second):
            if length != t * h * w:
                raise InvalidRequest(f"grid {t}x{h}x{w} takes {t * h * w} placeholders, not {length}")
            start = offset - saved
            highest = max(highest, start + _last_step(t, interval))
            saved += length - max(h, w)
    return max(highest + 1, prompt_tokens - saved) - prompt_tokens


def _in_order(placed: Sequence[Placed], metadata: Sequence[Metadata]) -> Iterator[tuple[Placed, Metadata]]:
    """The items that change positions. Audio and items without placeholders take one position per token."""
    for place, known in sorted(zip(placed, metadata, strict=True), key=lambda pair: pair[0].offset):
        if known.modality is not Modality.AUDIO and place.length:
            yield place, known


def _images(
    place: Placed, known: Metadata, tokens_per_second: float | None
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int], float]]:
    """Each run of placeholders, its merged grid, and the positions between two of its time steps."""
    if known.grid_thw is None:
        raise InvalidRequest(f"the {known.modality} at {place.offset} has no grid")
    t, h, w = known.grid_thw
    merge = known.merge_size or 1
    if place.spans is not None:
        for span in place.spans:
            yield span, (1, h // merge, w // merge), 1.0
        return
    interval = 1.0
    if known.modality is Modality.VIDEO and tokens_per_second is not None:
        # float32, as in transformers: the product is truncated to whole positions.
        interval = float(np.float32(tokens_per_second) * np.float32(known.second_per_grid_ts or 1.0))
    yield (place.offset, place.length), (t, h // merge, w // merge), interval


def _last_step(t: int, interval: float) -> int:
    return int(np.float32(t - 1) * np.float32(interval))
