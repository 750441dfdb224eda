"""Decode still images to upright RGB pixels. Limits are checked before any pixel is decoded.

Common JPEG files are decoded by simplejpeg, all others by Pillow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from epd.contracts.errors import CorruptMedia, EpdError, MediaTooLarge, UnsupportedMedia
from workers.limits import Hold, hold_nothing

#: Chroma samplings that simplejpeg decodes to the same pixels as Pillow.
_SAMPLINGS = frozenset({"444", "422", "420"})
#: Pillow's modes of 16-bit grey.
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
#: What transparent pixels are laid on, as RGBA.
_WHITE = (255, 255, 255, 255)
#: The EXIF tag of an image's orientation.
_ORIENTATION = 0x0112
#: What turns a stored image upright, by EXIF 2.32, tag 0x0112.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Formats of Pillow that a sniffed format may be. MPO is a JPEG file with several images.
_FORMATS = {"JPEG": ("JPEG", "MPO")}
_ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF"})
#: The largest buffer that ``Scratch`` keeps, in bytes: 22 megapixels.
_MOST_KEPT = 64 << 20


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image.

    Attributes:
        pixels: uint8 RGB [height, width, 3], upright.
        original_size: (width, height) as stored, before it was turned upright.
        frames: frames of an animation; 1 for a still image.
    """

    pixels: NDArray[np.uint8]
    original_size: tuple[int, int]
    frames: int


class Scratch:
    """A buffer for the pixels of one image after another: new memory costs up to a fifth of a decode."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Room for so many bytes, until the next call."""
        if nbytes > _MOST_KEPT:
            return np.empty(nbytes, np.uint8)
        if nbytes > self._kept.size:
            self._kept = np.empty(nbytes, np.uint8)
        return self._kept[:nbytes]


def read_image(
    path: Path,
    *,
    format_name: str,
    max_pixels: int,
    hold: Hold = hold_nothing,
    scratch: Scratch | None = None,
) -> DecodedImage:
    """Decode the first image of a file.

    Args:
        path: the file.
        format_name: Pillow's name of its format.
        max_pixels: most pixels, by the header.
        hold: called with the bytes of the pixels before they are decoded; may raise.
        scratch: may hold the pixels of the result, which are then valid until its next use.

    Raises:
        MediaTooLarge: the header states more pixels than ``max_pixels``.
        CorruptMedia: the bytes cannot be decoded.
        UnsupportedMedia: the pixels have no known range.
    """
    # Both decoders of a JPEG file take its bytes, so they are read once.
    jpeg = path.read_bytes() if format_name == "JPEG" else None
    source = path if jpeg is None else BytesIO(jpeg)
    with open_image(source, format_name=format_name, max_pixels=max_pixels) as image:
        hold(image.width * image.height * 3)
        frames = animation_frames(image)
        size = image.size
        pixels = _stored_pixels(image, jpeg, scratch or Scratch())
        turn = _UPRIGHT.get(_orientation(image))
        if turn is not None:
            pixels = np.asarray(Image.fromarray(pixels).transpose(turn))
        return DecodedImage(pixels, size, frames)


def _stored_pixels(image: Image.Image, jpeg: bytes | None, scratch: Scratch) -> NDArray[np.uint8]:
    if jpeg is not None:
        pixels = decode_common_jpeg(jpeg, image.size, scratch)
        if pixels is not None:
            return pixels
    image.load()
    return np.asarray(to_rgb(image))


@contextmanager
def open_image(source: Path | BytesIO, *, format_name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image whose header is within ``max_pixels``; decoder errors become ``CorruptMedia``."""
    try:
        with warnings.catch_warnings():
            # Pillow warns about its own pixel limit and about odd tags; our limit and errors apply instead.
            warnings.simplefilter("ignore")
            formats = _FORMATS.get(format_name, (format_name,))
            with Image.open(source, formats=formats) as image:
                check_pixels(image.size, max_pixels)
                yield image
    except (EpdError, MemoryError):
        raise  # not faults of the file
    except Image.DecompressionBombError:
        raise MediaTooLarge(f"the image has more than {max_pixels} pixels") from None
    except Exception as error:
        # Pillow's plug-ins raise all kinds of errors for corrupt files: OSError, SyntaxError, KeyError ...
        raise CorruptMedia(f"the {format_name} image cannot be decoded ({type(error).__name__})") from error


def check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    """Raise ``MediaTooLarge`` for more than ``max_pixels``. ``size`` is (width, height) in pixels."""
    if size[0] * size[1] > max_pixels:
        raise MediaTooLarge(f"{size[0]}x{size[1]} is more than {max_pixels} pixels")


def animation_frames(image: Image.Image) -> int:
    """The number of frames that are shown. The default image of an APNG is not one of them."""
    if image.format not in _ANIMATED:
        return 1
    frames = int(getattr(image, "n_frames", 1))
    return max(1, frames - has_cover(image))


def has_cover(image: Image.Image) -> bool:
    """Whether the first image is APNG's default image, shown only where animations are not supported."""
    return bool(getattr(image, "default_image", False))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken tag is no reason to refuse an image that can be shown
        return 1


def decode_common_jpeg(data: bytes, size: tuple[int, int], scratch: Scratch) -> NDArray[np.uint8] | None:
    """Decode a JPEG file in the common colour spaces and samplings.

    Args:
        data: the file.
        size: (width, height) of the checked header; a file of another size is left to Pillow.
        scratch: holds the result.

    Returns:
        uint8 RGB [height, width, 3] as stored; None if Pillow has to decode or refuse the file.
    """
    try:
        height, width, colours, sampling = simplejpeg.decode_jpeg_header(data)
        if colours != "YCbCr" or sampling not in _SAMPLINGS or (width, height) != size:
            return None
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, "RGB", fastdct=False, fastupsample=False, buffer=scratch.take(width * height * 3)
        )
    except ValueError:
        return None
    return pixels


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
    """16-bit grey by its high byte. A colour key (PNG, tRNS) marks transparent pixels, which become white."""
    values = np.asarray(image).astype(np.uint16)
    grey = (values >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey).convert("RGB")
