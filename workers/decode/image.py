"""Decode still images with Pillow to upright RGB pixels, with the limits checked before any pixel is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg
from billiard.exceptions import SoftTimeLimitExceeded
from numpy.typing import NDArray
from PIL import Image

from epd.contracts.errors import CorruptMedia, EpdError, MediaTooLarge, UnsupportedMedia
from workers.limits import Hold, hold_nothing

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


_ORIENTATION = 0x0112
#: EXIF 2.32, tag 0x0112: what brings a stored picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FORMATS = {"JPEG": ("JPEG", "MPO")}
_ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF"})


@dataclass(frozen=True)
class DecodedImage:
    """``pixels`` is uint8 RGB [height, width, 3], upright; ``original_size`` (width, height) as stored.

    ``frames`` counts the frames of an animation, 1 for a still image.
    """

    pixels: NDArray[np.uint8]
    original_size: tuple[int, int]
    frames: int


def read_image(path: Path, *, format_name: str, max_pixels: int, hold: Hold = hold_nothing) -> DecodedImage:
    """Decode the first picture of a file of Pillow's ``format_name``.

    Raises ``MediaTooLarge`` from the header alone, ``CorruptMedia`` for bytes that do not decode,
    ``UnsupportedMedia`` for pixels without a known range, and what ``hold`` raises.
    """
    with open_image(path, format_name=format_name, max_pixels=max_pixels) as image:
        hold(image.width * image.height * 3)
        frames = animation_frames(image)
        size = image.size
        pixels = _stored_pixels(image, path, format_name)
        turn = _UPRIGHT.get(_orientation(image))
        if turn is not None:
            pixels = np.asarray(Image.fromarray(pixels).transpose(turn))
        return DecodedImage(pixels, size, frames)


def _stored_pixels(image: Image.Image, path: Path, format_name: str) -> NDArray[np.uint8]:
    if format_name == "JPEG":
        pixels = decode_common_jpeg(path, image.size)
        if pixels is not None:
            return pixels
    image.load()
    return np.asarray(to_rgb(image))


@contextmanager
def open_image(path: Path, *, format_name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image whose header is within the limit; every fault of the decoder becomes ``CorruptMedia``."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of bombs by its own limit and of odd tags; our limit and our errors stand instead.
            warnings.simplefilter("ignore")
            formats = _FORMATS.get(format_name, (format_name,))
            with Image.open(path, formats=formats) as image:
                check_pixels(image.size, max_pixels)
                yield image
    except (EpdError, MemoryError, SoftTimeLimitExceeded):
        raise  # the last one is no fault of the file: the worker's own limit struck while Pillow worked
    except Image.DecompressionBombError:
        raise MediaTooLarge(f"the image has more than {max_pixels} pixels") from None
    except Exception as error:
        # Pillow's plug-ins raise whatever their parsing trips over: OSError, SyntaxError, KeyError ...
        raise CorruptMedia(f"the {format_name} image cannot be decoded ({type(error).__name__})") from error


def check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    """Raise ``MediaTooLarge`` for more pixels than allowed. ``size`` is (width, height)."""
    if size[0] * size[1] > max_pixels:
        raise MediaTooLarge(f"{size[0]}x{size[1]} is more than {max_pixels} pixels")


def animation_frames(image: Image.Image) -> int:
    """The number of frames that are shown: the still picture of an APNG is none of them."""
    if image.format not in _ANIMATED:
        return 1
    frames = int(getattr(image, "n_frames", 1))
    return max(1, frames - has_cover(image))


def has_cover(image: Image.Image) -> bool:
    """Whether the first picture is only shown where animation is not (APNG's default image)."""
    return bool(getattr(image, "default_image", False))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken tag is no reason to refuse a picture that shows
        return 1
