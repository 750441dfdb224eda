"""The size that the Qwen-VL families resize a picture to. Pure arithmetic, no tensor.

Source: ``smart_resize`` of qwen-vl-utils and of transformers' Qwen2-VL image processor: both sides become
multiples of ``factor``, the area stays within its bounds, and the aspect ratio changes as little as it can.
Qwen3-VL bounds the pixels of all frames of a video together: ``smart_resize`` of its video processor.
"""

from __future__ import annotations

import math

from epd.contracts.errors import MediaTooLarge

MAX_ASPECT_RATIO = 200


def smart_size(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) after resizing. Raises ``MediaTooLarge`` above an aspect ratio of 200."""
    return _bounded(height, width, frames=1, steps=1, factor=factor, least=min_pixels, most=max_pixels)


def smart_frame_size(
    height: int, width: int, *, frames: int, temporal: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) of each frame after resizing; the bounds are of all frames together.

    A frame that is smaller than one factor is first thought of as enlarged to it, aspect ratio kept.
    Raises ``MediaTooLarge`` above an aspect ratio of 200.
    """
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    # Python rounds halves to even, and so does the reference: 5 frames count as 4, 7 as 8.
    steps = round(frames / temporal) * temporal
    return _bounded(
        height, width, frames=frames, steps=steps, factor=factor, least=min_pixels, most=max_pixels
    )


def _bounded(
    height: int, width: int, *, frames: int, steps: int, factor: int, least: int, most: int
) -> tuple[int, int]:
    """Round to factors, then shrink or grow; ``steps`` frames are measured, ``frames`` are scaled by."""
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise MediaTooLarge(f"aspect ratio {ratio:.1f} of {width} x {height} is above {MAX_ASPECT_RATIO}")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if steps * rows * columns > most:
        shrink = math.sqrt((frames * height * width) / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif steps * rows * columns < least:
        grow = math.sqrt(least / (frames * height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns
