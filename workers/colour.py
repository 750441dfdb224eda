"""Any Pillow mode to RGB, as a browser would show it on a white page.

Plain ``convert("RGB")`` is wrong for four kinds: it drops alpha and shows what lies under it, clamps 16-bit
grey at 255, and cuts floats to their integer part.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from epd.contracts.errors import UnsupportedMedia

_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_WHITE = (255, 255, 255, 255)


def to_rgb(image: Image.Image) -> Image.Image:
    """An RGB image of equal size; raises ``UnsupportedMedia`` for modes without a known range."""
    if image.mode in _DEEP_GREY:
        return _from_deep_grey(image)
    if image.mode in {"F", "I"}:
        raise UnsupportedMedia(f"pixels of mode {image.mode} have no known range")
    if _has_alpha(image):
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info


def _on_white(image: Image.Image) -> Image.Image:
    with_alpha = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), with_alpha).convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """16-bit grey by its high byte; a colour key (PNG, tRNS) marks clear pixels."""
    values = np.asarray(image).astype(np.uint16)
    grey = (values >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey).convert("RGB")
