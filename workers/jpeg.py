"""A faster way to the same pixels for common JPEG files.

``simplejpeg`` drives the same libjpeg-turbo as Pillow, with the same inverse transform and upsampling, so its
pixels are equal to Pillow's, but it fills one buffer instead of three (measured 1.4 to 1.6 times as fast).
A test holds the equality. Whatever is not plain YCbCr, or draws a single warning, is left to Pillow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray

_SAMPLINGS = frozenset({"444", "422", "420"})


def decode_common_jpeg(path: Path, size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """uint8 RGB [height, width, 3] as stored, or ``None`` where Pillow has to decide.

    ``size`` is the (width, height) that the checked header promised; another size is refused.
    """
    data = path.read_bytes()
    try:
        height, width, colours, sampling = simplejpeg.decode_jpeg_header(data)
        if colours != "YCbCr" or sampling not in _SAMPLINGS or (width, height) != size:
            return None
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    except ValueError:
        return None
    return pixels
