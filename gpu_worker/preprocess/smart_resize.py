"""The size that the Qwen-VL families resize a picture to. Pure arithmetic, no tensor.

Source: ``smart_resize`` of qwen-vl-utils and of transformers' Qwen2-VL image processor: both sides become
multiples of ``factor``, the area stays within its bounds, and the aspect ratio changes as little as it can.
"""

from __future__ import annotations

import math

from epd.contracts.errors import MediaTooLarge

MAX_ASPECT_RATIO = 200


def smart_size(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) after resizing. Raises ``MediaTooLarge`` above an aspect ratio of 200."""
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise MediaTooLarge(f"aspect ratio {ratio:.1f} of {width} x {height} is above {MAX_ASPECT_RATIO}")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns
