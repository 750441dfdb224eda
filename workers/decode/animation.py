"""Animated GIF, WebP and PNG as videos: frames composed by Pillow, times from their display durations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from epd.contracts.embedding import VideoRules
from epd.contracts.errors import MediaTooLarge, UnsupportedMedia
from workers.decode.image import animation_frames, has_cover, open_image, to_rgb
from workers.decode.sampling import SampledFrames, Timeline, choose_frames
from workers.decode.sniff import Kind
from workers.limits import DecodeLimits, write_all

#: Seconds for which browsers show a frame without a duration.
_DEFAULT_SECONDS = 0.1


def sample_animation(
    path: Path, *, sniffed: Kind, rules: VideoRules, limits: DecodeLimits, out: Path
) -> SampledFrames:
    """Write the sampled frames of an animation to ``out``, as uint8 RGB [frames, height, width, 3].

    Raises:
        UnsupportedMedia: the image is a still one, or its pixels have no known range.
        MediaTooLarge: more pixels, frames, seconds or bytes than ``limits`` allow.
        CorruptMedia: the image cannot be decoded.
        BlobSpaceFull: space for the frames cannot be reserved.
    """
    with open_image(path, format_name=sniffed.format, max_pixels=limits.image_pixels) as image:
        total = animation_frames(image)
        if total < 2:
            raise UnsupportedMedia("a still image is not a video")
        if total > limits.source_frames:
            raise MediaTooLarge(f"the animation has more than {limits.source_frames} frames")
        starts, duration = _starts(image, limits)
        chosen = choose_frames(Timeline(starts), rules)
        _reserve(image.size, len(chosen), limits)
        _write(image, chosen, out)
        return SampledFrames(
            frames=len(chosen),
            size=image.size,
            original_size=image.size,
            timestamps=tuple(starts[index] for index in chosen),
            duration=duration,
            source_frames=total,
        )


def _frames(image: Image.Image) -> Iterator[Image.Image]:
    """The composed frames in order, without an APNG's cover."""
    frames = iter(ImageSequence.Iterator(image))
    if has_cover(image):
        next(frames)
    yield from frames


def _starts(image: Image.Image, limits: DecodeLimits) -> tuple[tuple[float, ...], float]:
    """When each frame appears, and when the last one ends, in seconds."""
    starts, clock = [], 0.0
    for frame in _frames(image):
        # In WebP the duration of a frame is known only after the frame is decoded.
        frame.load()
        starts.append(clock)
        clock += (frame.info.get("duration") or 0) / 1000 or _DEFAULT_SECONDS
        if clock > limits.video_seconds:
            raise MediaTooLarge(f"the animation is longer than {limits.video_seconds:g} s")
    return tuple(starts), clock


def _reserve(size: tuple[int, int], count: int, limits: DecodeLimits) -> None:
    nbytes = size[0] * size[1] * 3 * count
    if nbytes > limits.frame_bytes:
        raise MediaTooLarge(f"{count} frames of {size[0]}x{size[1]} are more than {limits.frame_bytes} bytes")
    limits.hold(nbytes)


def _write(image: Image.Image, chosen: tuple[int, ...], out: Path) -> None:
    wanted = {index: chosen.count(index) for index in chosen}
    with out.open("wb") as sink:
        for index, frame in enumerate(_frames(image)):
            if index in wanted:
                pixels = np.asarray(to_rgb(frame)).tobytes()
                for _ in range(wanted[index]):
                    write_all(sink, pixels)
