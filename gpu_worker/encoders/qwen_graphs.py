"""How packed patches of the Qwen-VL families grow, for captured forwards."""

from __future__ import annotations

from dataclasses import replace

from gpu_worker.encoders.graph_form import GraphForm, SegmentRule
from gpu_worker.encoders.qwen_parts import VisionSizes

#: Merge cells of the smallest bucket, and of the step between buckets.
_SMALLEST_CELLS = 64
_STEP_CELLS = 16

#: Merge cells of a frame that a batch of full buckets is reckoned with: a picture of about 230 pixels a side.
_TYPICAL_FRAME_CELLS = 64


def packed_form(sizes: VisionSizes) -> GraphForm:
    """Rows with offsets of frames."""
    cell = sizes.merge**2
    return GraphForm(
        units="patches",
        smallest=_SMALLEST_CELLS * cell,
        multiple=_STEP_CELLS * cell,
        segments={
            "frame_offsets": SegmentRule(lengths="frames", longest=None, typical=_TYPICAL_FRAME_CELLS * cell)
        },
    )


def windowed_form(sizes: VisionSizes, window: int) -> GraphForm:
    """Rows with offsets of frames and of windows of ``window`` merge cells a side; edges cut windows."""
    cell = sizes.merge**2
    whole = window * window * cell
    plain = packed_form(sizes)
    windows = SegmentRule(lengths="windows", longest=whole, typical=max(1, whole // 2))
    return replace(plain, indices={"restore": cell}, segments={**plain.segments, "window_offsets": windows})
