"""How far rotary positions run behind a prompt's token places in the Qwen-VL families, from metadata alone.

Text takes one position a token. A picture of t x h x w merged patches takes t*h*w tokens but moves the next
position by max(h, w) only, and its own positions reach t - 1 time steps. Decode adds the delta to a token's
place to get its position, so it needs neither pixels nor the prompt.

The rule is that of ``get_rope_index`` in transformers 5.24 (models/qwen2_vl, qwen2_5_vl, qwen3_vl);
tests/parity/test_mrope_parity.py holds both against each other. Engines that go on behind the last *time*
step of a video, as earlier releases did, have a delta of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from epd.contracts.errors import InvalidRequest
from epd.contracts.handoff import Placed
from epd.contracts.media import Modality
from epd.contracts.metadata import Metadata


def position_delta(
    placed: Sequence[Placed],
    metadata: Sequence[Metadata],
    *,
    prompt_tokens: int,
    tokens_per_second: float | None = None,
) -> int:
    """The mrope position delta of a prompt: its highest position + 1 - its tokens.

    ``placed`` and ``metadata`` are the items in the order of the prompt, sound among them or not.
    ``tokens_per_second`` is that of Qwen2.5-VL's vision config; the other families have none. A video with
    ``spans`` (Qwen3-VL) is a picture of one time step in each span.

    Raises:
        InvalidRequest: an item's grid and its placeholders disagree, or it has no grid.
    """
    saved, highest = 0, -1
    for place, known in _in_order(placed, metadata):
        for (offset, length), (t, h, w), interval in _pictures(place, known, tokens_per_second):
            if length != t * h * w:
                raise InvalidRequest(f"grid {t}x{h}x{w} takes {t * h * w} placeholders, not {length}")
            start = offset - saved
            highest = max(highest, start + _last_step(t, interval))
            saved += length - max(h, w)
    return max(highest + 1, prompt_tokens - saved) - prompt_tokens


def _in_order(placed: Sequence[Placed], metadata: Sequence[Metadata]) -> Iterator[tuple[Placed, Metadata]]:
    """The items that turn positions; sound and items without placeholders take one position a token."""
    for place, known in sorted(zip(placed, metadata, strict=True), key=lambda pair: pair[0].offset):
        if known.modality is not Modality.AUDIO and place.length:
            yield place, known


def _pictures(
    place: Placed, known: Metadata, tokens_per_second: float | None
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int], float]]:
    """Each run of placeholders with its merged grid and the positions between its time steps."""
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
        # float32, as transformers multiplies: the product is cut to whole positions.
        interval = float(np.float32(tokens_per_second) * np.float32(known.second_per_grid_ts or 1.0))
    yield (place.offset, place.length), (t, h // merge, w // merge), interval


def _last_step(t: int, interval: float) -> int:
    return int(np.float32(t - 1) * np.float32(interval))
