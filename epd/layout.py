"""Where a prefix cache ends in a prompt, and which embedding rows are still needed behind it.

A Prefill node whose cache covers the first ``offset`` tokens of a prompt needs no row of an item that lies
wholly in them, the later rows of an item that the border cuts, and every row of an item behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epd.contracts.errors import InvalidRequest
from epd.contracts.handoff import Handoff, HandoffItem, HandoffRequest, Placement, Slice

Item = Placement | HandoffItem
#: The multimodal layout of a prompt: a request, a handoff, or the items of either.
Layout = HandoffRequest | Handoff | Sequence[Item]


@dataclass(frozen=True, slots=True)
class Across:
    """An item that the border cuts: rows [start, stop) are still needed, in placeholders of the item."""

    item: Item
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Split:
    """The items of a prompt before, across and after a token offset, each in the order of the prompt."""

    before: tuple[Item, ...]
    across: tuple[Across, ...]
    after: tuple[Item, ...]

    def needed(self) -> list[Slice]:
        """The rows that are still needed, in the order of the prompt, as ``Client.slices`` takes them.

        Items without placeholders (a decoder looks at them by cross-attention) are asked for whole.
        """
        cut = [(part.item.offset, Slice(key=part.item.key, start=part.start)) for part in self.across]
        whole = [(item.offset, Slice(key=item.key)) for item in self.after]
        return [part for _, part in sorted(cut + whole, key=lambda pair: pair[0])]


def split_by_offset(request: Layout, offset: int) -> Split:
    """Which items of a prompt are wholly before, across and after ``offset`` tokens.

    An item that ends at the offset is before it, one that begins there is after. An item without placeholders
    goes by its own offset.

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
    """How many placeholders of an item stand before ``offset``; that many rows need not be fetched."""
    return sum(min(length, max(0, offset - first)) for first, length in item.runs)


def _items(request: Layout) -> Sequence[Item]:
    return request.items if isinstance(request, HandoffRequest | Handoff) else request
