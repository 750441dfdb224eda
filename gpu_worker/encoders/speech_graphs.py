"""How packed rows of speech grow, for captured forwards."""

from __future__ import annotations

from gpu_worker.encoders.graph_form import GraphForm, SegmentRule

#: Rows of the smallest bucket, and of the step between buckets: 2.6 s and 1.3 s. Even, since rows are paired.
_SMALLEST_ROWS = 128
_STEP_ROWS = 64

#: Rows of a window that a batch of full buckets is reckoned with: 10 s of sound.
_TYPICAL_ROWS = 500


def speech_form(window_rows: int) -> GraphForm:
    """Valid rows, cut by windows of at most ``window_rows``; features come in whole windows.

    A bucket has room for more windows than its rows would fill: their convolutions cost a few percent of
    what the blocks do, and so short sounds share a bucket. Pairs say how many rows come out: an odd last row
    of a sound gives none.
    """
    windows = SegmentRule(lengths="windows", longest=window_rows, typical=min(window_rows, _TYPICAL_ROWS))
    return GraphForm(
        units="keep",
        smallest=_SMALLEST_ROWS,
        multiple=_STEP_ROWS,
        indices={"pairs": 1},
        segments={"offsets": windows},
        per_segment={"mel": "offsets", "frames": "offsets"},
        output="pairs",
    )
