"""The size that an image is resized to: a fixed one by crop or stretch, or one that follows its own size.

The fixed sizes are those of CLIP, SigLIP and DINOv2. ``smart_size`` and ``smart_frame_size`` are the rules of
the Qwen-VL families: ``smart_resize`` in transformers' Qwen2-VL image and Qwen3-VL video processors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from epd.contracts.errors import MediaTooLarge, SettingsError
from gpu_worker.preprocess.resample import Filter
from gpu_worker.preprocess.resize import Window

#: Longer side over shorter side; above it ``smart_size`` refuses an image, as the reference does.
MAX_ASPECT_RATIO = 200


class FitRule(Protocol):
    """Brings images of any size to one."""

    @property
    def filter_(self) -> Filter:
        """The resampling filter."""
        ...

    @property
    def fitted(self) -> tuple[int, int]:
        """(height, width) of every image after resizing and cropping."""
        ...

    def placed(self, height: int, width: int) -> tuple[tuple[int, int], Window]:
        """(height, width) of the whole resized image, and the part of it that is kept."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StretchRule:
    """Resize to ``size`` (height, width), whatever the aspect ratio. Nothing is cut off."""

    size: tuple[int, int]
    filter_: Filter = Filter.BICUBIC

    @property
    def fitted(self) -> tuple[int, int]:
        """The size itself."""
        return self.size

    def placed(self, height: int, width: int) -> tuple[tuple[int, int], Window]:
        """The size, and the whole of it."""
        return self.size, Window(top=0, left=0, height=self.size[0], width=self.size[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class CropRule:
    """Resize the shorter side to ``shortest_edge``, then cut ``crop`` (height, width) from the middle."""

    shortest_edge: int
    crop: tuple[int, int]
    filter_: Filter = Filter.BICUBIC

    @property
    def fitted(self) -> tuple[int, int]:
        """The crop's size."""
        return self.crop

    def placed(self, height: int, width: int) -> tuple[tuple[int, int], Window]:
        """(height, width) of the whole resized image, and the part of it that is kept.

        The longer side and half of the margin are rounded down, as in transformers' image processors
        (``get_resize_output_image_size``, ``center_crop``).
        """
        short, long = min(height, width), max(height, width)
        stretched = int(self.shortest_edge * long / short)
        size = (self.shortest_edge, stretched) if height <= width else (stretched, self.shortest_edge)
        top, left = (size[0] - self.crop[0]) // 2, (size[1] - self.crop[1]) // 2
        return size, Window(top=top, left=left, height=self.crop[0], width=self.crop[1])


def crop_rule(processor: Mapping[str, Any], default: CropRule) -> CropRule:
    """The rule of a preprocessor file like that of BiT or CLIP. Raises ``SettingsError`` for other kinds."""
    if not processor:
        return default
    if not (processor.get("do_resize", True) and processor.get("do_center_crop", True)):
        raise SettingsError("preprocessor_config.json: do_resize and do_center_crop must both be true")
    edge = _edge(processor.get("size", default.shortest_edge))
    crop = _height_width("crop_size", processor.get("crop_size", default.crop))
    if max(crop) > edge:
        raise SettingsError(f"preprocessor_config.json: crop_size {crop} is larger than shortest_edge {edge}")
    return CropRule(shortest_edge=edge, crop=crop, filter_=_filter(processor, default.filter_))


def stretch_rule(processor: Mapping[str, Any], default: StretchRule) -> StretchRule:
    """The rule of a preprocessor file like that of SigLIP. Raises ``SettingsError`` for other kinds."""
    if not processor:
        return default
    if processor.get("do_center_crop") or not processor.get("do_resize", True):
        raise SettingsError("preprocessor_config.json: do_resize must be true and do_center_crop must not")
    size = _height_width("size", processor.get("size", default.size))
    return StretchRule(size=size, filter_=_filter(processor, default.filter_))


def _filter(processor: Mapping[str, Any], default: Filter) -> Filter:
    number = processor.get("resample", int(default))
    try:
        return Filter(number)
    except ValueError as error:
        raise SettingsError(f"preprocessor_config.json: resample {number!r}: neither 2 nor 3") from error


def _edge(value: object) -> int:
    edge = value.get("shortest_edge") if isinstance(value, Mapping) else value
    if not isinstance(edge, int):
        raise SettingsError(f"preprocessor_config.json: size {value!r} has no shortest_edge")
    return edge


def _height_width(key: str, value: object) -> tuple[int, int]:
    if isinstance(value, Mapping) and {"height", "width"} <= value.keys():
        return int(value["height"]), int(value["width"])
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2:
        return int(value[0]), int(value[1])
    raise SettingsError(f"preprocessor_config.json: {key} {value!r} is not a height and a width")


def smart_size(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) of an image after resizing, in multiples of ``factor``; the bounds are height * width.

    Raises:
        MediaTooLarge: the aspect ratio is above 200.
    """
    return _bounded(height, width, frames=1, steps=1, factor=factor, least=min_pixels, most=max_pixels)


def smart_frame_size(
    height: int, width: int, *, frames: int, temporal: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) of each frame after resizing; the bounds are for the pixels of all frames together.

    A frame smaller than ``factor`` is treated as if it had been enlarged to it, with its aspect ratio.

    Raises:
        MediaTooLarge: the aspect ratio is above 200.
    """
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    # Python rounds halves to even, as the reference does: 5 frames count as 4, 7 as 8.
    steps = round(frames / temporal) * temporal
    return _bounded(
        height, width, frames=frames, steps=steps, factor=factor, least=min_pixels, most=max_pixels
    )


def _bounded(
    height: int, width: int, *, frames: int, steps: int, factor: int, least: int, most: int
) -> tuple[int, int]:
    """Round to multiples, then shrink or grow. ``steps`` frames are measured, ``frames`` set the scale."""
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
